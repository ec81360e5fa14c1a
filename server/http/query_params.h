// The query part of a request, read strictly: every parameter at most once, numbers in range, no unknown names.
#ifndef TRIMTAB_SERVER_HTTP_QUERY_PARAMS_H_
#define TRIMTAB_SERVER_HTTP_QUERY_PARAMS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trimtab::server {

class QueryParams {
 public:
  static constexpr size_t kMaxValueBytes = 4096;

  explicit QueryParams(std::multimap<std::string, std::string> params) : params_(std::move(params)) {}

  // INVALID_ARGUMENT when a name is not in `known`, is there twice, or a value is over kMaxValueBytes.
  absl::Status Check(const std::vector<std::string>& known) const;

  // "" when absent.
  std::string Text(const std::string& name) const;
  // INVALID_ARGUMENT when absent or empty.
  absl::StatusOr<std::string> RequiredText(const std::string& name) const;
  // nullopt when absent; INVALID_ARGUMENT when not a whole number of 0 … `max`.
  absl::StatusOr<std::optional<uint64_t>> Uint(const std::string& name, uint64_t max) const;

 private:
  std::multimap<std::string, std::string> params_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_QUERY_PARAMS_H_
