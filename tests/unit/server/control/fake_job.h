// A training job and its couriers in one process: ranks that keep the switch protocol as the agent does, or break it
// as they are told. It implements CommandLink, and calls the controller as ingest would.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_CONTROL_FAKE_JOB_H_
#define TRIMTAB_TESTS_UNIT_SERVER_CONTROL_FAKE_JOB_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/control/controller.h"

namespace trimtab::server {

class FakeJob final : public CommandLink {
 public:
  enum class Habit {
    kFollows,
    kRefuses,            // REFUSED at PREPARE
    kSilent,             // never answers
    kDeafToCommit,       // PREPARED, then reads nothing for a while (see late_steps)
    kSilentAfterCommit,  // COMMITTED, switches, never says so
    kStuckAfterCommit,   // COMMITTED, then neither steps nor answers
  };
  static constexpr uint32_t kModeMetric = 7;
  static constexpr int64_t kStepNanos = 100'000'000;

  FakeJob(std::string run, uint32_t world, uint32_t layers, bool act)
      : run_(std::move(run)), layers_(layers), act_(act), ranks_(world) {
    for (Rank& r : ranks_) r.modes.assign(layers, v1::KERNEL_MODE_OBSERVE);
  }

  // The server that the couriers talk to; a restarted one gets everybody's Hello again.
  void ConnectTo(Controller* controller) {
    controller_ = controller;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (controller != nullptr && ranks_[rank].alive) Join(rank);
    }
  }
  void Join(uint32_t rank) {
    std::vector<v1::MetricDescriptor> metrics(1);
    metrics[0].set_id(kModeMetric);
    metrics[0].set_name("attention_mode");
    v1::RankInfo info;
    {
      std::lock_guard lock(mutex_);
      ranks_[rank].connected = true;
      info = Info(rank);
    }
    controller_.load()->OnRankJoined(Key(rank), info, metrics);
  }
  void Leave(uint32_t rank, LeaveReason reason, const std::string& detail = "") {
    {
      std::lock_guard lock(mutex_);
      ranks_[rank].connected = false;
      ranks_[rank].alive = reason == LeaveReason::kDisconnected;
      ranks_[rank].inbox.clear();
    }
    controller_.load()->OnRankLeft(Key(rank), reason, detail);
  }
  // A new process takes the rank's place.
  void Replace(uint32_t rank) {
    {
      std::lock_guard lock(mutex_);
      Rank fresh;
      fresh.incarnation = ranks_[rank].incarnation + 1;
      fresh.modes.assign(layers_, v1::KERNEL_MODE_OBSERVE);
      ranks_[rank] = std::move(fresh);
    }
    Join(rank);
  }

  void set_habit(uint32_t rank, Habit habit, uint64_t late_steps = 0) {
    std::lock_guard lock(mutex_);
    ranks_[rank].habit = habit;
    ranks_[rank].late_steps = late_steps;
  }
  void set_act(bool act) { act_ = act; }
  // Steps of this rank count from another number.
  void set_step(uint32_t rank, uint64_t step) {
    std::lock_guard lock(mutex_);
    ranks_[rank].next_step = step;
  }

  absl::Status Send(const RankKey& key, const v1::Command& command) override {
    std::lock_guard lock(mutex_);
    if (key.run != run_ || key.rank >= ranks_.size()) return absl::UnavailableError("no such rank");
    Rank& r = ranks_[key.rank];
    if (!r.connected || key.incarnation != r.incarnation) return absl::UnavailableError("no open channel");
    r.inbox.push_back(command);
    ++sent_;
    return absl::OkStatus();
  }

  // Every rank passes `steps` step boundaries: commands are read and answered, steps reported, the controller catches
  // up.
  void Step(int steps = 1) {
    for (int i = 0; i < steps; ++i) {
      for (uint32_t rank = 0; rank < ranks_.size(); ++rank) StepRank(rank);
      if (controller_ != nullptr) controller_.load()->Drain();
    }
  }

  std::vector<v1::KernelMode> modes(uint32_t rank) {
    std::lock_guard lock(mutex_);
    return ranks_[rank].modes;
  }
  // The step at which a rank last changed its modes.
  uint64_t switched_at(uint32_t rank) {
    std::lock_guard lock(mutex_);
    return ranks_[rank].switched_at;
  }
  uint64_t next_step(uint32_t rank) {
    std::lock_guard lock(mutex_);
    return ranks_[rank].next_step;
  }
  // Phases that a rank has read, in order.
  std::vector<v1::CommandPhase> seen(uint32_t rank) {
    std::lock_guard lock(mutex_);
    return ranks_[rank].seen;
  }
  RankKey Key(uint32_t rank) {
    std::lock_guard lock(mutex_);
    return {run_, rank, ranks_[rank].incarnation};
  }
  uint64_t sent() {
    std::lock_guard lock(mutex_);
    return sent_;
  }

 private:
  struct Rank {
    uint64_t incarnation = 1;
    uint64_t next_step = 1;
    bool connected = false, alive = true;
    Habit habit = Habit::kFollows;
    uint64_t late_steps = 0;
    std::deque<v1::Command> inbox;
    std::vector<v1::CommandPhase> seen;
    std::optional<v1::Command> prepared, committed;
    std::vector<v1::KernelMode> modes;
    uint64_t switched_at = 0;
    bool stuck = false;
  };

  v1::RankInfo Info(uint32_t rank) const {
    v1::RankInfo info;
    info.set_run(run_);
    info.set_rank(rank);
    info.set_world_size(ranks_.size());
    info.set_incarnation(ranks_[rank].incarnation);
    info.set_act(act_);
    for (uint32_t l = 0; l < layers_; ++l) info.add_layers()->set_index(l);
    for (const v1::KernelMode m : ranks_[rank].modes) info.add_modes(m);
    return info;
  }

  static v1::CommandAck Ack(uint64_t plan, v1::AckState state, uint64_t step, const std::string& reason = "") {
    v1::CommandAck ack;
    ack.set_plan(plan);
    ack.set_state(state);
    ack.set_step(step);
    ack.set_reason(reason);
    return ack;
  }

  // Under mutex_. Answers are given afterwards, as a courier would.
  void Read(Rank* r, const v1::Command& c, std::vector<v1::CommandAck>* answers) {
    r->seen.push_back(c.phase());
    switch (c.phase()) {
      case v1::COMMAND_PHASE_PREPARE:
        if (r->habit == Habit::kRefuses) {
          answers->push_back(
              Ack(c.plan(), v1::ACK_STATE_REFUSED, r->next_step, "shadow comparison failed: 0.3 > 0.02"));
          return;
        }
        r->prepared = c;
        answers->push_back(Ack(c.plan(), v1::ACK_STATE_PREPARED, r->next_step));
        return;
      case v1::COMMAND_PHASE_COMMIT:
        if (!r->prepared || r->prepared->plan() != c.plan()) return;
        if (r->next_step > c.effective_step()) {
          answers->push_back(Ack(c.plan(), v1::ACK_STATE_REFUSED, r->next_step, "late: the step is over"));
          return;
        }
        r->committed = c;
        answers->push_back(Ack(c.plan(), v1::ACK_STATE_COMMITTED, r->next_step));
        if (r->habit == Habit::kStuckAfterCommit) r->stuck = true;
        return;
      case v1::COMMAND_PHASE_ABORT:
        if (r->committed && r->committed->plan() == c.plan()) r->committed.reset();
        if (r->prepared && r->prepared->plan() == c.plan()) {
          r->prepared.reset();
          answers->push_back(Ack(c.plan(), v1::ACK_STATE_ABORTED, r->next_step));
        }
        return;
      default:
        return;
    }
  }

  void StepRank(uint32_t rank) {
    std::vector<v1::CommandAck> answers;
    v1::Step report;
    RankKey key;
    bool connected = false;
    {
      std::lock_guard lock(mutex_);
      Rank& r = ranks_[rank];
      if (!r.alive || r.stuck) return;
      key = {run_, rank, r.incarnation};
      while (!r.inbox.empty() && r.habit != Habit::kSilent) {
        if (r.habit == Habit::kDeafToCommit && r.inbox.front().phase() == v1::COMMAND_PHASE_COMMIT &&
            r.late_steps > 0) {
          --r.late_steps;
          break;
        }
        const v1::Command c = r.inbox.front();
        r.inbox.pop_front();
        Read(&r, c, &answers);
      }
      if (r.committed && r.next_step >= r.committed->effective_step()) {
        for (uint32_t l = 0; l < layers_; ++l) {
          bool named = r.committed->layers_size() == 0;
          for (const uint32_t x : r.committed->layers()) named |= x == l;
          if (named) r.modes[l] = r.committed->mode();
        }
        r.switched_at = r.next_step;
        if (r.habit != Habit::kSilentAfterCommit) {
          answers.push_back(Ack(r.committed->plan(), v1::ACK_STATE_APPLIED, r.next_step));
        }
        r.committed.reset();
        r.prepared.reset();
      }
      report.set_sequence(r.next_step);
      report.set_step(r.next_step);
      report.set_time_unix_nanos(static_cast<int64_t>(r.next_step) * kStepNanos);
      v1::Block* block = report.add_blocks();
      block->set_metric(kModeMetric);
      block->add_shape(layers_);
      for (const v1::KernelMode m : r.modes) block->add_uint64(m);
      ++r.next_step;
      connected = r.connected;
    }
    if (!connected || controller_ == nullptr) return;
    for (const v1::CommandAck& ack : answers) controller_.load()->OnAck(key, ack);
    const v1::Step* const one = &report;
    controller_.load()->OnSteps(key, {&one, 1});
  }

  const std::string run_;
  const uint32_t layers_;
  std::atomic<bool> act_;
  std::atomic<Controller*> controller_{nullptr};
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  uint64_t sent_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_CONTROL_FAKE_JOB_H_
