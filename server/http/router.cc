#include "server/http/router.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dashboards/live/assets.h"
#include "server/http/host_check.h"
#include "server/http/json_writer.h"

namespace trimtab::server {
namespace {

constexpr absl::string_view kRunsPath = "/api/v1/runs";
constexpr absl::string_view kStateSuffix = "/state";

HttpReply Error(int status, absl::string_view message) {
  HttpReply reply;
  reply.status = status;
  reply.body = ErrorJson(message);
  reply.headers = {{"Cache-Control", "no-store"}};
  return reply;
}

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

HttpReply FromJson(absl::StatusOr<std::string> json) {
  if (!json.ok()) return Error(HttpStatus(json.status()), json.status().message());
  HttpReply reply;
  reply.body = *std::move(json);
  reply.headers = {{"Cache-Control", "no-store"}};
  return reply;
}

HttpReply Text(int status, std::string body, std::string content_type = "text/plain; charset=utf-8") {
  HttpReply reply;
  reply.status = status;
  reply.content_type = std::move(content_type);
  reply.body = std::move(body);
  reply.headers = {{"Cache-Control", "no-store"}};
  return reply;
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& SecurityHeaders() {
  static const auto* const headers = new std::vector<std::pair<std::string, std::string>>{
      {"Content-Security-Policy",
       "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
  };
  return *headers;
}

Router::Router(const HttpOptions& options, bool bound_to_loopback, Registry* registry, Store* store,
               HttpServer::RenderMetrics render_metrics, HttpServer::Ready ready)
    : options_(options),
      bound_to_loopback_(bound_to_loopback),
      context_{&options_, registry, store},
      render_metrics_(std::move(render_metrics)),
      ready_(std::move(ready)) {}

HttpReply Router::Handle(const HttpRequest& request) const {
  if (!HostAccepted(request.host, bound_to_loopback_, options_.allowed_hosts)) {
    return Error(421, absl::StrCat("Host header '", request.host.substr(0, 128),
                                   "' is not a name of this server; open it as 127.0.0.1 or localhost"));
  }
  if (request.method != "GET" && request.method != "HEAD") {
    HttpReply reply = Error(405, "only GET and HEAD: this interface reads; to change something use `trimtab`");
    reply.headers.emplace_back("Allow", "GET, HEAD");
    return reply;
  }
  if (absl::StartsWith(request.path, "/api/")) return Api(request);
  if (request.path == "/healthz") return Text(200, "ok\n");
  if (request.path == "/readyz") {
    const absl::Status ready = ready_ ? ready_() : absl::OkStatus();
    return ready.ok() ? Text(200, "ready\n") : Error(503, ready.message());
  }
  if (request.path == "/metrics") {
    if (!render_metrics_) return Error(404, "this server exports no metrics");
    return Text(200, render_metrics_(), "text/plain; version=0.0.4; charset=utf-8");
  }
  return Asset(request);
}

HttpReply Router::Api(const HttpRequest& request) const {
  const QueryParams params(request.params);
  const absl::string_view path = request.path;
  if (path == kRunsPath) return FromJson(RunsJson(context_, params));
  if (path == "/api/v1/series") return FromJson(SeriesJson(context_, params));
  if (path == "/api/v1/events") return FromJson(EventsJson(context_, params));
  // Run names may hold slashes: everything between the prefix and the last "/state" is the name.
  if (absl::StartsWith(path, absl::StrCat(kRunsPath, "/")) && absl::EndsWith(path, kStateSuffix)) {
    absl::string_view run = path.substr(kRunsPath.size() + 1);
    if (run.size() > kStateSuffix.size()) {
      run.remove_suffix(kStateSuffix.size());
      return FromJson(StateJson(context_, std::string(run), params));
    }
  }
  return Error(404,
               "no such resource; there are /api/v1/runs, /api/v1/runs/<name>/state, /api/v1/series, /api/v1/events");
}

HttpReply Router::Asset(const HttpRequest& request) const {
  const std::string path = request.path == "/" ? "/index.html" : request.path;
  for (const live::Asset& asset : live::Assets()) {
    if (asset.path != path) continue;
    HttpReply reply;
    reply.content_type = std::string(asset.content_type);
    reply.headers = {{"Cache-Control", "no-cache"}, {"ETag", std::string(asset.etag)}};
    if (request.if_none_match == asset.etag) {
      reply.status = 304;
    } else {
      reply.body = std::string(asset.body);
    }
    return reply;
  }
  return Error(404, "no such page; the live page is at /");
}

}  // namespace trimtab::server
