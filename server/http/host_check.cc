#include "server/http/host_check.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace trimtab::server {

std::string HostOf(absl::string_view header) {
  absl::string_view host = header;
  absl::string_view port;
  if (absl::StartsWith(host, "[")) {
    const size_t close = host.find(']');
    if (close == absl::string_view::npos) return "";
    port = host.substr(close + 1);
    host = host.substr(1, close - 1);
  } else if (const size_t colon = host.find(':'); colon != absl::string_view::npos) {
    port = host.substr(colon);
    host = host.substr(0, colon);
  }
  if (!port.empty() && (port[0] != ':' || !std::all_of(port.begin() + 1, port.end(), absl::ascii_isdigit))) return "";
  if (!host.empty() && host.back() == '.') host.remove_suffix(1);
  return absl::AsciiStrToLower(host);
}

bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost" || absl::EndsWith(host, ".localhost")) return true;
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool HostAccepted(absl::string_view header, bool bound_to_loopback, const std::vector<std::string>& allowed) {
  const std::string host = HostOf(header);
  if (host.empty()) return false;
  if (bound_to_loopback && IsLoopbackHost(host)) return true;
  for (const std::string& name : allowed) {
    if (host == absl::AsciiStrToLower(name)) return true;
  }
  return !bound_to_loopback && allowed.empty();
}

}  // namespace trimtab::server
