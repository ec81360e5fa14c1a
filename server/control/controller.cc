#include "server/control/controller.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/control/plan_desk.h"
#include "server/control/rank_directory.h"

namespace trimtab::server {
namespace {

int64_t SystemUnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

using PlanOr = absl::StatusOr<v1::Plan>;

// What callers hand to the thread.
struct Work {
  std::function<PlanOr(PlanDesk&)> work;
  std::promise<PlanOr> answer;
};
struct Acked {
  RankKey rank;
  v1::CommandAck ack;
};
struct Joined {
  RankKey rank;
};
struct Left {
  RankKey rank;
  LeaveReason reason;
  std::string detail;
};
struct LookAtClock {};
using Item = std::variant<Work, Acked, Joined, Left, LookAtClock>;

class ControllerImpl final : public Controller {
 public:
  ControllerImpl(ControllerOptions options, CommandLink* link, EventLog* events, Store* store)
      : options_(std::move(options)),
        directory_(options_.runs_max),
        desk_(options_, &directory_, link, events, store) {}
  ~ControllerImpl() override { Shutdown(); }

  absl::Status Start() {
    if (absl::Status s = desk_.Start(); !s.ok()) return s;
    Publish();
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  // StepListener, AckListener ----------------------------------------------------------------------------------------

  void OnRankJoined(const RankKey& rank, const v1::RankInfo& info,
                    const std::vector<v1::MetricDescriptor>& metrics) override {
    directory_.Join(rank, info, metrics);
    Push(Joined{rank});
  }
  void OnRankUpdated(const RankKey& rank, const v1::RankInfo& info) override { directory_.Update(rank, info); }
  void OnSteps(const RankKey& rank, absl::Span<const v1::Step* const> steps) override { directory_.Steps(rank, steps); }
  void OnRankLeft(const RankKey& rank, LeaveReason reason, const std::string& detail) override {
    directory_.Leave(rank, reason);
    Push(Left{rank, reason, detail});
  }
  void OnAck(const RankKey& rank, const v1::CommandAck& ack) override {
    {
      std::lock_guard lock(mutex_);
      if (queue_.size() >= options_.queue_max) {
        ++dropped_;
        return;
      }
    }
    Push(Acked{rank, ack});
  }

  // Requests ---------------------------------------------------------------------------------------------------------

  PlanOr Submit(const Actuator::Request& r) override {
    PlanDesk::Ask ask{r.run, r.reason, r.actor, r.evidence_json, r.mode, r.layers, 0, 0};
    return Answer([ask = std::move(ask), propose = r.needs_approval, rollback = r.rollback](PlanDesk& desk) {
      return rollback ? desk.Rollback(ask) : propose ? desk.Propose(ask) : desk.Switch(ask);
    });
  }
  PlanOr Switch(const v1::SwitchRequest& r) override {
    PlanDesk::Ask ask{
        r.run(),        r.reason(),          r.actor(), "", r.mode(), {r.layers().begin(), r.layers().end()},
        r.lead_steps(), r.deadline_seconds()};
    return Answer([ask = std::move(ask)](PlanDesk& desk) { return desk.Switch(ask); });
  }
  PlanOr Rollback(const v1::RollbackRequest& r) override {
    PlanDesk::Ask ask;
    ask.run = r.run();
    ask.reason = r.reason();
    ask.actor = r.actor();
    return Answer([ask = std::move(ask)](PlanDesk& desk) { return desk.Rollback(ask); });
  }
  PlanOr Approve(const v1::ApproveRequest& r) override {
    return Answer([r](PlanDesk& desk) { return desk.Approve(r); });
  }

  absl::StatusOr<std::vector<v1::Plan>> ListPlans(const std::string& run) const override {
    std::lock_guard lock(mutex_);
    std::vector<v1::Plan> plans;
    for (const auto& [id, plan] : published_) {
      if (run.empty() || plan.run() == run) plans.push_back(plan);
    }
    return plans;
  }

  PlanOr WaitDecided(uint64_t plan, absl::Duration timeout) override {
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
    std::unique_lock lock(mutex_);
    const auto open = [&] {
      const auto it = published_.find(plan);
      return it != published_.end() &&
             (it->second.state() == v1::PLAN_STATE_PREPARING || it->second.state() == v1::PLAN_STATE_PROPOSED);
    };
    changed_.wait_until(lock, until, [&] { return stop_ || !open(); });
    const auto it = published_.find(plan);
    if (it == published_.end()) return absl::NotFoundError(absl::StrCat("Plan ", plan, " is not kept."));
    if (!open()) return it->second;
    if (stop_) return absl::UnavailableError("The server is shutting down.");
    return absl::DeadlineExceededError(absl::StrCat("Plan ", plan, " is still open."));
  }

  void Shutdown() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    changed_.notify_all();
    std::lock_guard join(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  void Drain() override {
    std::unique_lock lock(mutex_);
    const uint64_t target = pushed_;
    changed_.wait(lock, [&] { return worked_ >= target || ended_; });
  }

  void Tick() override {
    Push(LookAtClock{});
    Drain();
  }

  Statistics statistics() const override {
    std::lock_guard lock(mutex_);
    Statistics s = statistics_;
    s.dropped = dropped_;
    s.runs_refused = directory_.runs_refused();
    return s;
  }

 private:
  bool Push(Item item) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) return false;
      queue_.push_back(std::move(item));
      ++pushed_;
    }
    wake_.notify_one();
    return true;
  }

  PlanOr Answer(std::function<PlanOr(PlanDesk&)> work) {
    Work request{std::move(work), {}};
    std::future<PlanOr> answer = request.answer.get_future();
    {
      std::lock_guard lock(mutex_);
      if (queue_.size() >= options_.queue_max) {
        ++dropped_;
        return absl::ResourceExhaustedError("Too many requests wait for the controller; try again.");
      }
    }
    if (!Push(std::move(request))) return absl::UnavailableError("The server is shutting down.");
    return answer.get();
  }

  void Loop() {
    const auto tick = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(options_.tick_seconds > 0 ? options_.tick_seconds : 3600));
    auto next_tick = std::chrono::steady_clock::now() + tick;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait_until(lock, next_tick, [&] { return stop_ || !queue_.empty(); });
      if (stop_ && queue_.empty()) break;
      const bool look = options_.tick_seconds > 0 && std::chrono::steady_clock::now() >= next_tick;
      if (look) next_tick = std::chrono::steady_clock::now() + tick;
      std::deque<Item> items = std::exchange(queue_, {});
      lock.unlock();
      const size_t count = items.size();
      std::vector<std::pair<std::promise<PlanOr>, PlanOr>> answers;
      for (Item& item : items) {
        if (auto* request = std::get_if<Work>(&item)) {
          PlanOr answer = request->work(desk_);
          answers.emplace_back(std::move(request->answer), std::move(answer));
        } else if (const auto* acked = std::get_if<Acked>(&item)) {
          desk_.OnAck(acked->rank, acked->ack);
        } else if (const auto* joined = std::get_if<Joined>(&item)) {
          desk_.OnJoined(joined->rank);
        } else if (const auto* left = std::get_if<Left>(&item)) {
          desk_.OnLeft(left->rank, left->reason, left->detail);
        } else {
          desk_.OnTick();
        }
      }
      if (look) desk_.OnTick();
      Publish();
      // After publishing, so that the caller finds its plan.
      for (auto& [promise, answer] : answers) promise.set_value(std::move(answer));
      lock.lock();
      worked_ += count;
      changed_.notify_all();
    }
    ended_ = true;
    changed_.notify_all();
  }

  void Publish() {
    std::vector<v1::Plan> plans = desk_.TakeChanged();
    const std::vector<uint64_t> dropped = desk_.TakeDropped();
    std::lock_guard lock(mutex_);
    for (const uint64_t id : dropped) published_.erase(id);
    for (v1::Plan& plan : plans) {
      const uint64_t id = plan.id();
      published_[id] = std::move(plan);
    }
    statistics_ = desk_.statistics();
    changed_.notify_all();
  }

  const ControllerOptions options_;
  RankDirectory directory_;
  PlanDesk desk_;  // the thread's, after Start

  mutable std::mutex mutex_;
  std::condition_variable wake_, changed_;
  std::deque<Item> queue_;                  // mutex_
  std::map<uint64_t, v1::Plan> published_;  // mutex_
  Statistics statistics_;                   // mutex_
  uint64_t dropped_ = 0;                    // mutex_
  uint64_t pushed_ = 0, worked_ = 0;        // mutex_
  bool stop_ = false, ended_ = false;       // mutex_

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> Controller::Create(ControllerOptions options, CommandLink* link,
                                                               EventLog* events, Store* store) {
  if (link == nullptr || events == nullptr) {
    return absl::InvalidArgumentError("The controller needs a command link and an event log.");
  }
  if (!options.now_unix_nanos) options.now_unix_nanos = SystemUnixNanos;
  auto controller = std::make_unique<ControllerImpl>(std::move(options), link, events, store);
  if (absl::Status s = controller->Start(); !s.ok()) return s;
  return controller;
}

}  // namespace trimtab::server
