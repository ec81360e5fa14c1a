#include "server/http/server.h"

#include <httplib.h>
#include <netdb.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/http/host_check.h"
#include "server/http/json_writer.h"
#include "server/http/request_queue.h"
#include "server/http/router.h"

namespace trimtab::server {
namespace {

// An idle browser tab must not hold a thread between its refreshes (every 2 s).
constexpr int kKeepAliveSeconds = 1;
constexpr int kKeepAliveRequests = 100;
constexpr int kReadTimeoutSeconds = 5;
constexpr int kWriteTimeoutSeconds = 10;
constexpr size_t kMaxRequestBodyBytes = 4096;  // GET has none

// Tells where the listening socket is bound.
class ListeningServer : public httplib::Server {
 public:
  absl::StatusOr<std::pair<std::string, int>> BoundTo() const {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    char host[NI_MAXHOST], service[NI_MAXSERV];
    if (getsockname(svr_sock_, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      return absl::InternalError("cannot read the address of the listening HTTP socket");
    }
    return std::make_pair(std::string(host), std::stoi(service));
  }
};

absl::Status CheckOptions(const HttpOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("HTTP port ", options.port, " is not in 0 … 65535"));
  }
  in6_addr v6{};
  if (options.address.empty() ||
      (absl::StrContains(options.address, ':') && inet_pton(AF_INET6, options.address.c_str(), &v6) != 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP address '", options.address, "' is not an address; give it without port, like 127.0.0.1"));
  }
  return absl::OkStatus();
}

// Takes back what would let a small request cost much: many overlapping ranges multiply the reply (ignoring them is
// allowed), and httplib compresses Brotli at its slowest level.
void LimitReply(httplib::Request& request) {
  request.ranges.clear();
  const bool gzip = absl::StrContains(request.get_header_value("Accept-Encoding"), "gzip");
  request.headers.erase("Accept-Encoding");
  if (gzip) request.set_header("Accept-Encoding", "gzip");
}

HttpRequest ToRequest(const httplib::Request& in) {
  HttpRequest request;
  request.method = in.method;
  request.path = in.path;
  request.params.insert(in.params.begin(), in.params.end());
  request.host = in.get_header_value_count("Host") == 1 ? in.get_header_value("Host") : "";
  request.if_none_match = in.get_header_value("If-None-Match");
  return request;
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpOptions options, Registry* registry, Store* store, RenderMetrics render_metrics, Ready ready)
      : options_(std::move(options)),
        registry_(registry),
        store_(store),
        render_metrics_(std::move(render_metrics)),
        ready_(std::move(ready)) {}
  ~HttpServerImpl() override { Shutdown(); }

  absl::Status Start() {
    if (absl::Status status = CheckOptions(options_); !status.ok()) return status;
    Configure();
    const bool bound = options_.port == 0 ? server_.bind_to_any_port(options_.address) > 0
                                          : server_.bind_to_port(options_.address, options_.port);
    if (!bound) {
      return absl::UnavailableError(absl::StrCat("cannot listen for HTTP on ", options_.address, " port ",
                                                 options_.port,
                                                 ": in use, or not an address of this machine; choose another with "
                                                 "--http"));
    }
    absl::StatusOr<std::pair<std::string, int>> bound_to = server_.BoundTo();
    if (!bound_to.ok()) return bound_to.status();
    std::tie(host_, port_) = *bound_to;
    router_ = std::make_unique<Router>(options_, IsLoopbackHost(host_), registry_, store_, render_metrics_, ready_);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() before the loop has begun would be lost.
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  }

  void Shutdown() override {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  int port() const override { return port_; }
  std::string address() const override {
    return absl::StrContains(host_, ':') ? absl::StrCat("[", host_, "]:", port_) : absl::StrCat(host_, ":", port_);
  }
  Statistics statistics() const override { return {requests_, refused_, failed_, delayed_}; }

 private:
  void Configure() {
    server_.new_task_queue = [this] {
      return new RequestQueue(options_.threads, options_.max_queued_connections, &delayed_);
    };
    // Without httplib's SO_REUSEPORT, under which a second server would silently take half of the connections.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.set_keep_alive_timeout(kKeepAliveSeconds);
    server_.set_keep_alive_max_count(kKeepAliveRequests);
    server_.set_read_timeout(kReadTimeoutSeconds);
    server_.set_write_timeout(kWriteTimeoutSeconds);
    server_.set_payload_max_length(kMaxRequestBodyBytes);
    server_.set_tcp_nodelay(true);
    httplib::Headers headers(SecurityHeaders().begin(), SecurityHeaders().end());
    server_.set_default_headers(headers);
    // Everything is routed here; httplib's own routes by regular expression are not used.
    server_.set_pre_routing_handler([this](const httplib::Request& in, httplib::Response& out) {
      LimitReply(const_cast<httplib::Request&>(in));
      Answer(in, out);
      return httplib::Server::HandlerResponse::Handled;
    });
    server_.set_error_handler([this](const httplib::Request&, httplib::Response& out) {
      if (out.body.empty() && out.status != 304) {
        out.set_content(ErrorJson(absl::StrCat("malformed or oversized request (HTTP ", out.status, ")")),
                        "application/json");
        Count(out.status);
      }
    });
    server_.set_exception_handler([this](const httplib::Request&, httplib::Response& out, std::exception_ptr) {
      out.status = 500;
      out.set_content(ErrorJson("internal error"), "application/json");
      Count(out.status);
    });
  }

  void Answer(const httplib::Request& in, httplib::Response& out) {
    HttpReply reply = router_->Handle(ToRequest(in));
    out.status = reply.status;
    for (const auto& [name, value] : reply.headers) out.set_header(name, value);
    // A body that was not read would be taken for the next request.
    if (in.method != "GET" && in.method != "HEAD") out.set_header("Connection", "close");
    out.body = std::move(reply.body);
    out.set_header("Content-Type", reply.content_type);
    Count(reply.status);
  }

  void Count(int status) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    if (status >= 500) {
      failed_.fetch_add(1, std::memory_order_relaxed);
    } else if (status >= 400) {
      refused_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  const HttpOptions options_;
  Registry* const registry_;
  Store* const store_;
  const RenderMetrics render_metrics_;
  const Ready ready_;
  std::atomic<uint64_t> requests_{0}, refused_{0}, failed_{0}, delayed_{0};
  std::string host_;
  int port_ = 0;
  std::unique_ptr<Router> router_;
  ListeningServer server_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(HttpOptions options, Registry* registry, Store* store,
                                                               RenderMetrics render_metrics, Ready ready) {
  auto server = std::make_unique<HttpServerImpl>(std::move(options), registry, store, std::move(render_metrics),
                                                 std::move(ready));
  if (absl::Status status = server->Start(); !status.ok()) return status;
  return server;
}

}  // namespace trimtab::server
