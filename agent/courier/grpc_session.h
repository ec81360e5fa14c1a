// Session over gRPC's callback API.
#ifndef TRIMTAB_AGENT_COURIER_GRPC_SESSION_H_
#define TRIMTAB_AGENT_COURIER_GRPC_SESSION_H_

#include <memory>
#include <string>

#include "agent/courier/session.h"

namespace trimtab::courier {

// Opens a connection of its own to `target` and starts a stream on it. Returns at once: a failure to connect is the
// session's kClosed event. Keepalive pings find a dead peer within about 15 s.
std::unique_ptr<Session> OpenGrpcSession(const std::string& target);

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_GRPC_SESSION_H_
