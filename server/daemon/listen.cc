#include "server/daemon/listen.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/model/limits.h"

namespace trimtab::server {
namespace {

constexpr int kKeepaliveMillis = 10000;  // a dead peer is noticed within the sum of these two
constexpr int kKeepaliveTimeoutMillis = 10000;
constexpr int kClientPingGapMillis = 5000;  // couriers may ping as often as this
constexpr int kMaxSyncPollers = 4;

// gRPC does not say why a port cannot be had, so ask the system the same question.
std::string WhyNot(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int looked_up = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (looked_up != 0) return gai_strerror(looked_up);
  std::string reason = "unknown reason";
  const int socket_fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  if (socket_fd >= 0) {
    const int reuse = 1;
    setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
    if (bind(socket_fd, found->ai_addr, found->ai_addrlen) != 0) reason = std::strerror(errno);
    close(socket_fd);
  }
  freeaddrinfo(found);
  return reason;
}

}  // namespace

absl::StatusOr<GrpcServer> Listen(const Address& address, const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second server must fail, not share the port
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kClientPingGapMillis);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxTransportMessageBytes));
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, kMaxSyncPollers);
  for (grpc::Service* service : services) builder.RegisterService(service);
  int port = 0;
  builder.AddListeningPort(FormatAddress(address), grpc::InsecureServerCredentials(), &port);
  GrpcServer result{.server = builder.BuildAndStart(), .address = address};
  if (result.server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", FormatAddress(address), ": ", WhyNot(address),
                                               "; stop what uses it or choose another address with --listen"));
  }
  result.address.port = static_cast<uint16_t>(port);
  return result;
}

}  // namespace trimtab::server
