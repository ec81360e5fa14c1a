// The HTTP face of a server: the live page, a read-only JSON API, /metrics, /healthz and /readyz. API: docs/cli.md,
// section "HTTP API".
//
// It only reads: no request changes anything. Bound to loopback it answers only requests whose Host header names
// loopback, so that a web page in the user's browser cannot reach it by DNS rebinding. No CORS headers are sent.
#ifndef TRIMTAB_SERVER_HTTP_SERVER_H_
#define TRIMTAB_SERVER_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/registry/registry.h"
#include "server/store/store.h"

namespace trimtab::server {

struct HttpOptions {
  std::string address = "127.0.0.1";  // numeric address or host name to listen on, without port
  int port = 7071;                    // 0: any free port; see HttpServer::port()
  std::string version;                // shown on the page and in /api/v1/runs
  // Further names that the Host header may carry, without port ("trimtab.example"). Unused unless bound to loopback.
  std::vector<std::string> allowed_hosts;
  size_t threads = 16;                 // requests served at once
  size_t max_queued_connections = 64;  // accepted but waiting; beyond it the listen backlog holds the rest
  size_t max_points = 20000;           // largest `points` of a series request, over all of its curves
  size_t max_events = 1000;            // largest `max` of an events request
  double max_query_seconds = 2;        // a series that takes longer is cut and marked "truncated"
};

class HttpServer {
 public:
  using RenderMetrics = std::function<std::string()>;  // Prometheus text format; called from several threads
  using Ready = std::function<absl::Status()>;         // not OK: /readyz answers 503 with its message

  // Binds and starts serving. `registry` and `store` are borrowed and must outlive the server. Without `render_metrics`
  // /metrics answers 404; without `ready` the server is ready as soon as it serves.
  // UNAVAILABLE when the address cannot be bound (names it and the fix), INVALID_ARGUMENT for a bad address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(HttpOptions options, Registry* registry, Store* store,
                                                            RenderMetrics render_metrics = nullptr,
                                                            Ready ready = nullptr);
  virtual ~HttpServer() = default;  // shuts down

  // Stops accepting and waits for the requests in flight (at most a few seconds). Idempotent.
  virtual void Shutdown() = 0;

  virtual int port() const = 0;             // the bound port
  virtual std::string address() const = 0;  // "127.0.0.1:7071", "[::1]:7071"

  struct Statistics {
    uint64_t requests = 0;             // answered, any status
    uint64_t refused = 0;              // 4xx
    uint64_t failed = 0;               // 5xx
    uint64_t delayed_connections = 0;  // waited because max_queued_connections was reached
  };
  virtual Statistics statistics() const = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_SERVER_H_
