// Early return for absl::Status, and its mapping to grpc::Status at the edge. Codes map one to one.
#ifndef TRIMTAB_PROTO_STATUS_STATUS_H_
#define TRIMTAB_PROTO_STATUS_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expr` is not OK.
#define TRIMTAB_RETURN_IF_ERROR(expr)                                                         \
  do {                                                                                        \
    if (absl::Status trimtab_status_ = (expr); !trimtab_status_.ok()) return trimtab_status_; \
  } while (false)

#define TRIMTAB_STATUS_CONCAT_(a, b) a##b
#define TRIMTAB_STATUS_CONCAT(a, b) TRIMTAB_STATUS_CONCAT_(a, b)
#define TRIMTAB_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return std::move(tmp).status();  \
  lhs = *std::move(tmp)
// Assigns the value of a StatusOr to `lhs` (which may declare a variable) or returns its status.
#define TRIMTAB_ASSIGN_OR_RETURN(lhs, expr) \
  TRIMTAB_ASSIGN_OR_RETURN_(TRIMTAB_STATUS_CONCAT(trimtab_or_, __LINE__), lhs, expr)

namespace trimtab {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace trimtab
#endif  // TRIMTAB_PROTO_STATUS_STATUS_H_
