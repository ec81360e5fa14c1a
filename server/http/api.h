// The JSON documents of /api/v1. Each function reads the registry or the store and returns one document.
//
// Thread-safe as far as registry and store are. Errors: INVALID_ARGUMENT (bad parameter), NOT_FOUND (run, metric,
// layer), others from the store. Fields: docs/cli.md, section "HTTP API".
#ifndef TRIMTAB_SERVER_HTTP_API_H_
#define TRIMTAB_SERVER_HTTP_API_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/http/query_params.h"
#include "server/http/server.h"
#include "server/registry/registry.h"
#include "server/store/store.h"

namespace trimtab::server {

struct ApiContext {
  const HttpOptions* options = nullptr;
  Registry* registry = nullptr;
  Store* store = nullptr;
};

absl::StatusOr<std::string> RunsJson(const ApiContext& context, const QueryParams& params);

inline constexpr size_t kMaxRanksInState = 64;  // the state lists no more ranks than this; "ranks_total" counts all
absl::StatusOr<std::string> StateJson(const ApiContext& context, const std::string& run, const QueryParams& params);

inline constexpr size_t kMaxIncarnations = 32;  // a series shows the newest; "incarnations_left_out" counts the others
absl::StatusOr<std::string> SeriesJson(const ApiContext& context, const QueryParams& params);

absl::StatusOr<std::string> EventsJson(const ApiContext& context, const QueryParams& params);

// "native", "observe", "stabilized", "paper"; "unknown" for anything else.
const char* ModeName(v1::KernelMode mode);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_API_H_
