#include "server/policy/engine.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/policy/policy_parser.h"
#include "server/policy/run_watch.h"
#include "server/policy/state_key.h"

namespace trimtab::server {
namespace {

constexpr char kStatePrefix[] = "policy/run/";

int64_t SystemUnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What listener calls hand to the thread.
struct Joined {
  RankKey rank;
  RankFacts facts;
  std::vector<v1::Aggregation> aggregation;
};
struct Updated {
  RankKey rank;
  RankFacts facts;
};
struct Steps {
  RankKey rank;
  std::vector<StepCells> steps;
  size_t bytes = 0;
};
struct Left {
  RankKey rank;
  LeaveReason reason;
};
struct PlanEvent {
  std::string run, kind;
  uint64_t plan, step;
};
struct LookAtClock {};
using Item = std::variant<Joined, Updated, Steps, Left, PlanEvent, LookAtClock>;

class Engine final : public PolicyEngine {
 public:
  Engine(Policy policy, EventLog* events, Actuator* actuator, Store* store, PolicyEngineOptions options)
      : policy_(std::move(policy)),
        table_(policy_),
        events_(events),
        actuator_(actuator),
        store_(store),
        options_(std::move(options)) {
    if (!options_.now_unix_nanos) options_.now_unix_nanos = SystemUnixNanos;
  }
  ~Engine() override { Shutdown(); }

  void Start() {
    v1::Event loaded;
    loaded.set_kind("policy_loaded");
    loaded.set_severity(v1::SEVERITY_INFO);
    loaded.set_message(absl::StrCat("Policy with ", policy_.rules.size(), " rules loaded."));
    loaded.set_actor("policy");
    loaded.set_evidence_json(
        nlohmann::json{{"yaml", policy_.yaml}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    policy_event_ = Append(std::move(loaded));
    if (store_ != nullptr) store_->AddEventListener(this);
    thread_ = std::thread([this] { Loop(); });
  }

  // StepListener and EventListener -----------------------------------------------------------------------------------

  void OnRankJoined(const RankKey& rank, const v1::RankInfo& info,
                    const std::vector<v1::MetricDescriptor>& metrics) override {
    auto map = std::make_shared<const MetricMap>(MapMetrics(table_, metrics));
    std::vector<v1::Aggregation> aggregation = map->aggregation;
    {
      std::lock_guard lock(mutex_);
      metrics_[rank] = std::move(map);
    }
    Push(Joined{rank, FactsOf(info), std::move(aggregation)});
  }

  void OnRankUpdated(const RankKey& rank, const v1::RankInfo& info) override { Push(Updated{rank, FactsOf(info)}); }

  void OnSteps(const RankKey& rank, absl::Span<const v1::Step* const> steps) override {
    std::shared_ptr<const MetricMap> map;
    {
      std::lock_guard lock(mutex_);
      const auto it = metrics_.find(rank);
      if (it == metrics_.end() || queue_bytes_ >= options_.queue_bytes_max || stop_) {
        statistics_.steps_dropped += steps.size();
        return;
      }
      map = it->second;
    }
    Steps item{rank, {}, 0};
    item.steps.reserve(steps.size());
    for (const v1::Step* step : steps) {
      item.steps.push_back(ReduceStep(table_, *map, rank.rank, *step));
      item.bytes += item.steps.back().bytes();
    }
    Push(std::move(item));
  }

  void OnRankLeft(const RankKey& rank, LeaveReason reason, const std::string&) override {
    {
      std::lock_guard lock(mutex_);
      metrics_.erase(rank);
    }
    Push(Left{rank, reason});
  }

  void OnEvent(const v1::Event& event) override {
    uint64_t plan = 0;
    if (event.kind() != "switch_applied" && event.kind() != "switch_refused" && event.kind() != "rejected") return;
    if (!absl::SimpleAtoi(event.plan_id(), &plan)) return;
    Push(PlanEvent{event.run(), event.kind(), plan, event.step()});
  }

  // PolicyEngine -----------------------------------------------------------------------------------------------------

  void Shutdown() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    std::lock_guard join(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  void Drain() override {
    std::unique_lock lock(mutex_);
    const uint64_t target = pushed_;
    done_.wait(lock, [&] { return worked_ >= target || ended_; });
  }

  void Tick() override {
    Push(LookAtClock{});
    Drain();
  }

  const Policy& policy() const override { return policy_; }

  Statistics statistics() const override {
    std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  void Push(Item item) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      if (const auto* steps = std::get_if<Steps>(&item)) queue_bytes_ += steps->bytes;
      queue_.push_back(std::move(item));
      ++pushed_;
    }
    wake_.notify_one();
  }

  void Loop() {
    const auto tick = std::chrono::duration<double>(options_.tick_seconds > 0 ? options_.tick_seconds : 3600);
    auto next_tick = std::chrono::steady_clock::now() + tick;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait_until(lock, next_tick, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty() && stop_) break;
      const bool look = options_.tick_seconds > 0 && std::chrono::steady_clock::now() >= next_tick;
      if (look) next_tick = std::chrono::steady_clock::now() + tick;
      std::deque<Item> items = std::exchange(queue_, {});
      queue_bytes_ = 0;
      lock.unlock();
      const size_t count = items.size();
      for (Item& item : items) std::visit([this](auto& i) { Work(i); }, item);
      if (look) LookAtClockNow();
      SaveChanged();
      lock.lock();
      worked_ += count;
      CountRuns();
      done_.notify_all();
    }
    ended_ = true;
    done_.notify_all();
  }

  // The thread's part: runs_ belongs to it ---------------------------------------------------------------------------

  RunWatch* WatchOf(const std::string& run, bool make) {
    const auto it = runs_.find(run);
    if (it != runs_.end()) return it->second.get();
    if (!make) return nullptr;
    if (runs_.size() >= options_.runs_max && !ForgetIdleRun()) {
      Count([](Statistics& s) { ++s.runs_refused; });
      return nullptr;
    }
    auto watch = std::make_unique<RunWatch>(&policy_, &table_, options_.fold_wait_steps_max);
    Restore(run, watch.get());
    return runs_.emplace(run, std::move(watch)).first->second.get();
  }

  // Drops a run without ranks; its state is saved and comes back when it does.
  bool ForgetIdleRun() {
    for (auto it = runs_.begin(); it != runs_.end(); ++it) {
      if (!it->second->idle()) continue;
      Save(it->first, *it->second);
      evaluated_before_ += it->second->steps_evaluated();
      late_before_ += it->second->steps_late();
      runs_.erase(it);
      return true;
    }
    return false;
  }

  void Restore(const std::string& run, RunWatch* watch) {
    if (store_ == nullptr) return;
    const absl::StatusOr<std::string> text = store_->GetState(RunStateKey(kStatePrefix, run));
    if (!text.ok()) {
      if (!absl::IsNotFound(text.status())) Count([](Statistics& s) { ++s.event_errors; });
      return;
    }
    try {
      const nlohmann::json state = nlohmann::json::parse(*text);
      if (state.at("run").get<std::string>() == run) watch->Load(state);
    } catch (const nlohmann::json::exception&) {  // a state of another version: the run starts without history
      Count([](Statistics& s) { ++s.event_errors; });
    }
  }

  void Save(const std::string& run, const RunWatch& watch) {
    if (store_ == nullptr) return;
    nlohmann::json state = watch.Save();
    state["run"] = run;
    const std::string text = state.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (!store_->PutState(RunStateKey(kStatePrefix, run), text).ok()) Count([](Statistics& s) { ++s.event_errors; });
  }

  void SaveChanged() {
    for (const auto& [run, watch] : runs_) {
      if (watch->NeedsSave()) Save(run, *watch);
    }
  }

  void Work(Joined& i) {
    if (RunWatch* w = WatchOf(i.rank.run, true)) w->Join(i.rank.rank, i.rank.incarnation, i.facts, i.aggregation);
  }
  void Work(Updated& i) {
    if (RunWatch* w = WatchOf(i.rank.run, false)) w->Update(i.rank.rank, i.facts);
  }
  void Work(Steps& i) {
    RunWatch* w = WatchOf(i.rank.run, false);
    if (w == nullptr) return;
    const int64_t now = options_.now_unix_nanos();
    for (StepCells& step : i.steps) {
      Execute(i.rank.run, w, w->Step(i.rank.rank, i.rank.incarnation, std::move(step), now));
    }
  }
  void Work(Left& i) {
    RunWatch* w = WatchOf(i.rank.run, false);
    if (w == nullptr) return;
    Execute(i.rank.run, w, w->Leave(i.rank.rank, i.rank.incarnation, i.reason, options_.now_unix_nanos()));
  }
  void Work(PlanEvent& i) {
    if (RunWatch* w = WatchOf(i.run, false)) w->OnPlanEvent(i.kind, i.plan, i.step);
  }
  void Work(LookAtClock&) { LookAtClockNow(); }

  void LookAtClockNow() {
    const int64_t now = options_.now_unix_nanos();
    for (const auto& [run, watch] : runs_) {
      if (!watch->idle()) Execute(run, watch.get(), watch->Look(now));
    }
  }

  void Execute(const std::string& run, RunWatch* watch, const std::vector<Decision>& decisions) {
    for (const Decision& d : decisions) {
      switch (d.kind) {
        case Decision::Kind::kAlert:
          Count([](Statistics& s) { ++s.alerts; });
          AppendDecision(run, "alert", d);
          break;
        case Decision::Kind::kResolved:
          Count([](Statistics& s) { ++s.resolved; });
          AppendDecision(run, "alert_resolved", d);
          break;
        case Decision::Kind::kSwitch:
          Count([](Statistics& s) { ++s.switches_asked; });
          Submit(run, watch, d);
          break;
        case Decision::Kind::kPropose:
          Count([](Statistics& s) { ++s.proposals; });
          Submit(run, watch, d);
          break;
        case Decision::Kind::kRollback:
          Count([](Statistics& s) { ++s.rollbacks_asked; });
          AppendDecision(run, "alert", d);
          Submit(run, watch, d);
          break;
      }
    }
  }

  void Submit(const std::string& run, RunWatch* watch, const Decision& d) {
    const Rule& rule = policy_.rules[d.rule];
    Actuator::Request request;
    request.run = run;
    request.mode = rule.action.mode;
    request.layers = d.layers;
    request.reason = d.message;
    request.actor = "policy";
    request.evidence_json = Text(d.evidence);
    request.needs_approval = d.kind == Decision::Kind::kPropose;
    request.rollback = d.kind == Decision::Kind::kRollback;
    const absl::StatusOr<v1::Plan> plan = actuator_->Submit(request);  // the actuator records a refusal as an event
    if (request.rollback) return;
    if (plan.ok()) {
      watch->PlanAccepted(plan->id(), d);
    } else {
      const bool may_pass = absl::IsFailedPrecondition(plan.status()) || absl::IsUnavailable(plan.status());
      watch->PlanRefused(d, may_pass && watch->act());
    }
  }

  std::string Text(const nlohmann::json& evidence) const {
    nlohmann::json j = evidence;
    j["policy_event"] = policy_event_;
    return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void AppendDecision(const std::string& run, const char* kind, const Decision& d) {
    v1::Event event;
    event.set_run(run);
    event.set_kind(kind);
    event.set_severity(d.kind == Decision::Kind::kResolved ? v1::SEVERITY_INFO : d.severity);
    event.set_step(d.step);
    event.set_message(d.message);
    event.set_detector(policy_.rules[d.rule].name);
    event.set_evidence_json(Text(d.evidence));
    event.set_actor("policy");
    Append(std::move(event));
  }

  uint64_t Append(v1::Event event) {
    event.set_time_unix_nanos(options_.now_unix_nanos());
    const absl::StatusOr<uint64_t> id = events_->Append(std::move(event));
    if (!id.ok()) Count([](Statistics& s) { ++s.event_errors; });
    return id.value_or(0);
  }

  template <typename Change>
  void Count(Change change) {
    std::lock_guard lock(mutex_);
    change(statistics_);
  }

  // Under mutex_, from the thread.
  void CountRuns() {
    uint64_t evaluated = evaluated_before_, late = late_before_, active = 0;
    for (const auto& [run, watch] : runs_) {
      evaluated += watch->steps_evaluated();
      late += watch->steps_late();
      active += watch->active_alarms();
    }
    statistics_.steps_evaluated = evaluated;
    statistics_.steps_late = late;
    statistics_.active_alarms = active;
  }

  const Policy policy_;
  const SignalTable table_;
  EventLog* const events_;
  Actuator* const actuator_;
  Store* const store_;
  PolicyEngineOptions options_;
  uint64_t policy_event_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::map<RankKey, std::shared_ptr<const MetricMap>> metrics_;  // mutex_
  std::deque<Item> queue_;                                       // mutex_
  size_t queue_bytes_ = 0;                                       // mutex_
  uint64_t pushed_ = 0, worked_ = 0;                             // mutex_
  bool stop_ = false, ended_ = false;                            // mutex_
  Statistics statistics_;                                        // mutex_

  std::map<std::string, std::unique_ptr<RunWatch>> runs_;  // the thread's
  uint64_t evaluated_before_ = 0, late_before_ = 0;        // the thread's

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PolicyEngine>> PolicyEngine::Create(Policy policy, EventLog* events, Actuator* actuator,
                                                                   Store* store, PolicyEngineOptions options) {
  if (events == nullptr || actuator == nullptr) {
    return absl::InvalidArgumentError("The policy engine needs an event log and an actuator.");
  }
  auto engine = std::make_unique<Engine>(std::move(policy), events, actuator, store, std::move(options));
  engine->Start();
  return engine;
}

}  // namespace trimtab::server
