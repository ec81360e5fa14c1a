// Maps one request to one reply. Knows no sockets, so that it can be tested and fuzzed as a function.
#ifndef TRIMTAB_SERVER_HTTP_ROUTER_H_
#define TRIMTAB_SERVER_HTTP_ROUTER_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/http/api.h"
#include "server/http/server.h"

namespace trimtab::server {

struct HttpRequest {
  std::string method = "GET";
  std::string path;  // percent-decoded
  std::multimap<std::string, std::string> params;
  std::string host;           // Host header
  std::string if_none_match;  // If-None-Match header
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// Headers of every reply: content security policy, no sniffing, no framing, no referrer, no sharing with other origins.
const std::vector<std::pair<std::string, std::string>>& SecurityHeaders();

class Router {
 public:
  // `bound_to_loopback` turns on the Host check.
  Router(const HttpOptions& options, bool bound_to_loopback, Registry* registry, Store* store,
         HttpServer::RenderMetrics render_metrics, HttpServer::Ready ready);

  // Never throws; errors are JSON {"error"}. Thread-safe.
  HttpReply Handle(const HttpRequest& request) const;

 private:
  HttpReply Api(const HttpRequest& request) const;
  HttpReply Asset(const HttpRequest& request) const;

  const HttpOptions options_;
  const bool bound_to_loopback_;
  const ApiContext context_;
  const HttpServer::RenderMetrics render_metrics_;
  const HttpServer::Ready ready_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_ROUTER_H_
