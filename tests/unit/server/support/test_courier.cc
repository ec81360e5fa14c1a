#include "tests/unit/server/support/test_courier.h"

#include <algorithm>

namespace trimtab::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);  // a hang becomes a failure

}  // namespace

TestCourier::TestCourier(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  stub_ =
      v1::TelemetryService::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  stream_ = stub_->Session(&context_);
  reader_ = std::thread([this] { Read(); });
}

TestCourier::~TestCourier() {
  context_.TryCancel();
  reader_.join();
  if (!status_) stream_->Finish();
}

void TestCourier::Read() {
  v1::ServerMessage message;
  while (stream_->Read(&message)) {
    absl::MutexLock lock(&mutex_);
    if (message.has_durable()) {
      uint64_t& known = durable_[message.durable().channel()];
      known = std::max(known, message.durable().sequence());
    }
    inbox_.push_back(message);
  }
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

bool TestCourier::Send(const v1::AgentMessage& message) { return stream_->Write(message); }

std::optional<v1::ServerMessage> TestCourier::Wait(const std::function<bool(const v1::ServerMessage&)>& fits) {
  absl::MutexLock lock(&mutex_);
  auto found = inbox_.end();
  const auto ready = [&] {
    found = std::find_if(inbox_.begin(), inbox_.end(), fits);
    return found != inbox_.end() || ended_;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&ready), kPatience);
  if (found == inbox_.end()) return std::nullopt;
  v1::ServerMessage message = *found;
  inbox_.erase(found);
  return message;
}

std::optional<v1::Welcome> TestCourier::WaitWelcome(uint32_t channel) {
  const auto message =
      Wait([&](const v1::ServerMessage& m) { return m.has_welcome() && m.welcome().channel() == channel; });
  return message ? std::optional(message->welcome()) : std::nullopt;
}

std::optional<v1::Refusal> TestCourier::WaitRefusal() {
  const auto message = Wait([](const v1::ServerMessage& m) { return m.has_refusal(); });
  return message ? std::optional(message->refusal()) : std::nullopt;
}

std::optional<v1::Command> TestCourier::WaitCommand() {
  const auto message = Wait([](const v1::ServerMessage& m) { return m.has_command(); });
  return message ? std::optional(message->command()) : std::nullopt;
}

bool TestCourier::WaitDurable(uint32_t channel, uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [&] { return durable_[channel] >= sequence || ended_; };
  mutex_.AwaitWithTimeout(absl::Condition(&ready), kPatience);
  return durable_[channel] >= sequence;
}

uint64_t TestCourier::durable(uint32_t channel) const {
  absl::MutexLock lock(&mutex_);
  const auto found = durable_.find(channel);
  return found == durable_.end() ? 0 : found->second;
}

grpc::Status TestCourier::Finish() {
  stream_->WritesDone();
  return WaitEnd();
}

grpc::Status TestCourier::WaitEnd() {
  absl::MutexLock lock(&mutex_);
  const auto ready = [&] { return ended_; };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), kPatience)) {
    return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the stream did not end");
  }
  if (!status_) status_ = stream_->Finish();
  return *status_;
}

}  // namespace trimtab::server
