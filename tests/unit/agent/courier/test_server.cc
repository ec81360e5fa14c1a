#include "tests/unit/agent/courier/test_server.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

namespace trimtab::courier {

bool ServerStore::WaitFor(const std::function<bool()>& ready, std::chrono::seconds timeout) {
  std::unique_lock<std::mutex> lock(mutex);
  return changed.wait_for(lock, timeout, ready);
}

ServerStore::Rank* ServerStore::Find(uint32_t rank) {
  Rank* found = nullptr;
  for (auto& [key, entry] : ranks) {
    if (std::get<1>(key) == rank && (found == nullptr || entry.steps.size() > found->steps.size())) found = &entry;
  }
  return found;
}

uint64_t ServerStore::Steps(uint32_t rank) {
  uint64_t steps = 0;
  for (const auto& [key, entry] : ranks) steps += std::get<1>(key) == rank ? entry.steps.size() : 0;
  return steps;
}

class TestServer::Service final : public v1::TelemetryService::Service {
 public:
  Service(ServerStore* store, TestServer* owner) : store_(store), owner_(owner) {}

  using Stream = grpc::ServerReaderWriter<v1::ServerMessage, v1::AgentMessage>;

  grpc::Status Session(grpc::ServerContext*, Stream* stream) override {
    ++owner_->streams_;
    Link link{stream, {}, {}};
    {
      std::lock_guard<std::mutex> lock(links_mutex_);
      links_.insert(&link);
    }
    grpc::Status status = Serve(&link);
    {
      std::lock_guard<std::mutex> lock(links_mutex_);
      links_.erase(&link);
    }
    {
      std::lock_guard<std::mutex> lock(store_->mutex);
      for (const auto& [channel, key] : link.channels) store_->ranks[key].open = false;
    }
    --owner_->streams_;
    return status;
  }

  bool Command(uint32_t rank, v1::Command command) {
    std::lock_guard<std::mutex> lock(links_mutex_);
    for (Link* link : links_) {
      for (const auto& [channel, key] : link->channels) {
        if (std::get<1>(key) != rank) continue;
        v1::ServerMessage message;
        command.set_channel(channel);
        *message.mutable_command() = command;
        link->Write(message);
        return true;
      }
    }
    return false;
  }

 private:
  struct Link {
    Stream* stream;
    std::map<uint32_t, ServerStore::Key> channels;  // guarded by links_mutex_
    std::mutex write_mutex;
    void Write(const v1::ServerMessage& message) {
      std::lock_guard<std::mutex> lock(write_mutex);
      stream->Write(message);
    }
  };

  grpc::Status Serve(Link* link) {
    v1::AgentMessage message;
    int batches = 0;
    while (link->stream->Read(&message)) {
      switch (message.body_case()) {
        case v1::AgentMessage::kHello:
          if (!OnHello(message.hello(), link)) return grpc::Status::OK;
          break;
        case v1::AgentMessage::kSteps: {
          OnSteps(message.steps(), link);
          const int cut = owner_->behaviour_.cut_after_batches.load();
          if (cut > 0 && ++batches >= cut) {
            owner_->behaviour_.cut_after_batches = 0;
            return grpc::Status(grpc::StatusCode::UNAVAILABLE, "cut by the test");
          }
          break;
        }
        default:
          OnOther(message, link);
      }
    }
    return grpc::Status::OK;
  }

  bool OnHello(const v1::Hello& hello, Link* link) {
    const Behaviour& behaviour = owner_->behaviour_;
    const int only = behaviour.refuse_rank.load();
    if (behaviour.refuse_code != 0 && (only < 0 || static_cast<uint32_t>(only) == hello.rank().rank())) {
      Refuse(hello.channel(), behaviour.refuse_code, link);
      return !behaviour.refuse_fatal;
    }
    const ServerStore::Key key(hello.rank().run(), hello.rank().rank(), hello.rank().incarnation());
    if (behaviour.one_life && OtherLifeIsOpen(key)) {
      Refuse(hello.channel(), static_cast<int>(grpc::StatusCode::ALREADY_EXISTS), link);
      return true;
    }
    {
      std::lock_guard<std::mutex> lock(links_mutex_);
      link->channels[hello.channel()] = key;
    }
    v1::ServerMessage reply;
    {
      std::lock_guard<std::mutex> lock(store_->mutex);
      ServerStore::Rank& rank = store_->ranks[key];
      rank.info = hello.rank();
      rank.metrics.assign(hello.metrics().begin(), hello.metrics().end());
      if (++rank.hellos == 1) rank.order = store_->ranks.size();
      store_->highest_channel = std::max<uint64_t>(store_->highest_channel, hello.channel());
      rank.open = true;
      reply.mutable_welcome()->set_channel(hello.channel());
      reply.mutable_welcome()->set_last_durable_sequence(rank.last);
      store_->changed.notify_all();
    }
    if (!behaviour.no_welcome) link->Write(reply);
    return true;
  }

  void Refuse(uint32_t channel, int code, Link* link) {
    v1::ServerMessage reply;
    reply.mutable_refusal()->set_channel(channel);
    reply.mutable_refusal()->set_code(code);
    reply.mutable_refusal()->set_message("refused by the test: change the test");
    reply.mutable_refusal()->set_fatal(owner_->behaviour_.refuse_fatal);
    link->Write(reply);
    std::lock_guard<std::mutex> lock(store_->mutex);
    ++store_->refusals;
    store_->changed.notify_all();
  }

  bool OtherLifeIsOpen(const ServerStore::Key& key) {
    std::lock_guard<std::mutex> lock(store_->mutex);
    for (const auto& [other, rank] : store_->ranks) {
      if (rank.open && other != key && std::get<0>(other) == std::get<0>(key) &&
          std::get<1>(other) == std::get<1>(key)) {
        return true;
      }
    }
    return false;
  }

  void OnSteps(const v1::StepBatch& batch, Link* link) {
    {
      std::lock_guard<std::mutex> lock(store_->mutex);
      ++store_->batches;
      store_->largest_batch = std::max<uint64_t>(store_->largest_batch, batch.ByteSizeLong());
      store_->changed.notify_all();
    }
    Behaviour& behaviour = owner_->behaviour_;
    if (!behaviour.acks) return;
    if (behaviour.ack_delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(behaviour.ack_delay_ms));
    v1::ServerMessage reply;
    {
      std::lock_guard<std::mutex> lock(store_->mutex);
      ServerStore::Rank& rank = store_->ranks[KeyOf(batch.channel(), link)];
      for (const v1::Step& step : batch.steps()) {
        if (!rank.steps.emplace(step.sequence(), step).second) ++rank.repeated_steps;
        rank.last = std::max(rank.last, step.sequence());
      }
      rank.ring_dropped = batch.ring_dropped_steps();
      reply.mutable_durable()->set_channel(batch.channel());
      reply.mutable_durable()->set_sequence(rank.last);
      store_->changed.notify_all();
    }
    link->Write(reply);
  }

  void OnOther(const v1::AgentMessage& message, Link* link) {
    std::lock_guard<std::mutex> lock(store_->mutex);
    if (message.has_ack()) store_->ranks[KeyOf(message.ack().channel(), link)].answers.push_back(message.ack());
    if (message.has_update()) {
      ServerStore::Rank& rank = store_->ranks[KeyOf(message.update().channel(), link)];
      rank.info = message.update().rank();
      ++rank.updates;
    }
    if (message.has_goodbye()) {
      ServerStore::Rank& rank = store_->ranks[KeyOf(message.goodbye().channel(), link)];
      rank.goodbye = message.goodbye();
      rank.open = false;
    }
    if (message.has_heartbeat()) {
      ++store_->heartbeats;
      store_->spool_dropped = message.heartbeat().spool_dropped_steps();
      store_->spool_bytes = message.heartbeat().spool_bytes();
    }
    store_->changed.notify_all();
  }

  ServerStore::Key KeyOf(uint32_t channel, Link* link) {
    std::lock_guard<std::mutex> lock(links_mutex_);
    return link->channels.at(channel);
  }

  ServerStore* store_;
  TestServer* owner_;
  std::mutex links_mutex_;
  std::set<Link*> links_;
};

TestServer::TestServer(ServerStore* store, int port) : service_(std::make_unique<Service>(store, this)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

TestServer::~TestServer() { Stop(); }

std::string TestServer::address() const { return "127.0.0.1:" + std::to_string(port_); }

void TestServer::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

bool TestServer::Command(uint32_t rank, v1::Command command) { return service_->Command(rank, std::move(command)); }

}  // namespace trimtab::courier
