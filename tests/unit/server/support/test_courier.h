// One stream to a real server, with a thread that collects what the server says.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEST_COURIER_H_
#define TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEST_COURIER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "trimtab/v1/telemetry.grpc.pb.h"

namespace trimtab::server {

class TestCourier {
 public:
  explicit TestCourier(const std::string& address);
  ~TestCourier();  // cancels the stream

  // False when the stream is broken.
  bool Send(const v1::AgentMessage& message);

  // Waits for a message that has arrived (or will) and fits, in arrival order, each returned once.
  std::optional<v1::ServerMessage> Wait(const std::function<bool(const v1::ServerMessage&)>& fits);
  std::optional<v1::Welcome> WaitWelcome(uint32_t channel);
  std::optional<v1::Refusal> WaitRefusal();
  std::optional<v1::Command> WaitCommand();
  // True once the channel is acknowledged up to `sequence`.
  bool WaitDurable(uint32_t channel, uint64_t sequence);
  // Half-closes and returns how the stream ended.
  grpc::Status Finish();
  // Waits for the server to end the stream.
  grpc::Status WaitEnd();
  void Cancel() { context_.TryCancel(); }

  uint64_t durable(uint32_t channel) const;

 private:
  void Read();

  grpc::ClientContext context_;
  std::unique_ptr<v1::TelemetryService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ServerMessage>> stream_;
  mutable absl::Mutex mutex_;
  std::vector<v1::ServerMessage> inbox_;
  std::map<uint32_t, uint64_t> durable_;
  bool ended_ = false;
  std::optional<grpc::Status> status_;
  std::thread reader_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEST_COURIER_H_
