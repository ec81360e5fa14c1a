// Which Host headers a server bound to loopback accepts. A page on another site can make the user's browser resolve its
// own name to 127.0.0.1 (DNS rebinding) and would then be of the same origin; its Host header gives it away.
#ifndef TRIMTAB_SERVER_HTTP_HOST_CHECK_H_
#define TRIMTAB_SERVER_HTTP_HOST_CHECK_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trimtab::server {

// "127.0.0.1:80" → "127.0.0.1", "[::1]:80" → "::1"; lower case; "" when malformed.
std::string HostOf(absl::string_view host_header);

// True for localhost (and names below it), 127.0.0.0/8 and ::1.
bool IsLoopbackHost(absl::string_view host);

// `bound_to_loopback`: the host must be loopback or one of `allowed`. Otherwise any host passes, unless `allowed` is
// not empty: then it must be one of them.
bool HostAccepted(absl::string_view host_header, bool bound_to_loopback, const std::vector<std::string>& allowed);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_HOST_CHECK_H_
