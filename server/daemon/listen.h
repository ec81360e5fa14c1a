// The gRPC server: port, limits, keepalive, health, reflection.
#ifndef TRIMTAB_SERVER_DAEMON_LISTEN_H_
#define TRIMTAB_SERVER_DAEMON_LISTEN_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/config.h"

namespace trimtab::server {

struct GrpcServer {
  std::unique_ptr<grpc::Server> server;
  Address address;  // with the port that was taken
};

// UNAVAILABLE when the port is taken or the address is not of this machine: says which and what to do.
absl::StatusOr<GrpcServer> Listen(const Address& address, const std::vector<grpc::Service*>& services);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_DAEMON_LISTEN_H_
