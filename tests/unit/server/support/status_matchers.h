// IsOk() and StatusIs(code, message matcher) for absl::Status and absl::StatusOr.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_STATUS_MATCHERS_H_
#define TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_STATUS_MATCHERS_H_

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trimtab::server {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

MATCHER_P2(StatusIs, code, message, "has the status code and a fitting message") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code && testing::Matches(message)(std::string(StatusOf(arg).message()));
}

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_STATUS_MATCHERS_H_
