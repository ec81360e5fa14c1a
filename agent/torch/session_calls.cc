// Attention calls: from the forward that opens a record to the backward that finishes it.
#include <algorithm>
#include <mutex>

#include "agent/torch/session.h"

namespace trimtab::agent {

CallLedger::Sink Session::Sink() {
  return [this](int layer, const ForwardRecord& record) {
    ++scalars_.attention_calls;
    ++coverage_.calls_hooked;
    if (record.sampled && !record.stats.empty()) stats_.Add(layer, record.stats);
  };
}

ForwardPlan Session::BeginForward(const ForwardCall& call, bool in_backward) {
  ForwardPlan plan;
  const char* const op = call.op;
  if (!running()) return plan;
  std::lock_guard guard(lock_);
  activity_ = true;
  last_op_ = op;
  if (in_backward) {
    plan.record = ledger_.MatchRecomputed(call);
    if (plan.record < 0) {
      coverage_.PassBy(op, "recomputation of a forward that was not seen");
      return plan;
    }
    const ForwardRecord& record = ledger_.record(plan.record);
    plan.sequence = record.sequence;
    plan.recomputed = true;
    plan.mode = record.mode;
    plan.layer = ledger_.PredictLayer(plan.record);
    ++coverage_.calls_recomputed;
    return plan;
  }
  const CallLedger::Sink sink = Sink();
  plan.record = ledger_.Open(call, step_, sink);
  if (plan.record < 0) {
    coverage_.PassBy(op, "more than 64 kinds of attention");
    return plan;
  }
  ForwardRecord& record = ledger_.record(plan.record);
  plan.sequence = record.sequence;
  plan.layer = ledger_.PredictLayer(plan.record);
  plan.mode = record.mode = modes_.Of(plan.layer);
  record.sampled = sampled() && (plan.mode != TRIMTAB_MODE_NATIVE || options_.storage != TRIMTAB_STORE_SAME);
  record.stats.clear();
  if (record.sampled) {
    record.stats.resize(call.signature.heads);
    ClearHeadStats(record.stats);
    plan.measure = true;
  }
  if (latch_->WantsShadow(plan.layer)) {
    plan.shadow = true;
    plan.shadow_mode = latch_->shadow_mode();
  }
  return plan;
}

void Session::EndForward(const ForwardPlan& plan, const void* key, std::span<const trimtab_head_stats> stats,
                         double seconds) {
  if (!running() || plan.record < 0) return;
  std::lock_guard guard(lock_);
  overhead_seconds_ += seconds;
  ForwardRecord& record = ledger_.record(plan.record);
  if (record.sequence != plan.sequence) return ledger_.Forget(key);
  ledger_.Bind(plan.record, key);
  if (!stats.empty() && stats.size() == record.stats.size()) {
    std::copy(stats.begin(), stats.end(), record.stats.begin());
    record.has_forward_stats = true;
  }
}

void Session::ReportShadow(int layer, bool good, const std::string& detail) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  latch_->ReportShadow(layer, good, detail);
}

void Session::PassBy(const char* op, const char* reason, const void* key, bool training) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  activity_ |= training;
  if (key != nullptr) ledger_.Forget(key);
  coverage_.PassBy(op, reason);
}

BackwardPlan Session::BeginBackward(const char* op, const void* key) {
  BackwardPlan plan;
  if (!running()) return plan;
  std::lock_guard guard(lock_);
  activity_ = true;
  plan.record = ledger_.Find(key);
  if (plan.record < 0) {
    coverage_.PassBy(op, "its forward was not seen, or its output was copied");
    return plan;
  }
  const ForwardRecord& record = ledger_.record(plan.record);
  plan.sequence = record.sequence;
  plan.mode = record.mode;
  plan.probe = record.sampled && !record.done;  // a second backward over the same graph is not measured again
  plan.whole = !record.has_forward_stats;
  plan.rows = sampling_.rows();
  plan.offset = step_ * 0x9E3779B97F4A7C15ull >> 33;
  return plan;
}

void Session::EndBackward(const BackwardPlan& plan, std::span<const trimtab_head_stats> stats, double seconds) {
  if (!running() || plan.record < 0) return;
  std::lock_guard guard(lock_);
  overhead_seconds_ += seconds;
  ForwardRecord& record = ledger_.record(plan.record);
  if (record.sequence != plan.sequence) return;
  if (!record.done && stats.size() == record.stats.size()) {
    for (size_t head = 0; head < stats.size(); ++head) {
      plan.whole ? AddHeadStats(stats[head], &record.stats[head]) : AddDeltaStats(stats[head], &record.stats[head]);
    }
  }
  ledger_.Finish(plan.record);
}

void Session::HookFailed(const char* op, const std::string& what) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  coverage_.Error(std::string(op) + ": " + what + " (hook disabled; the original kernel runs)");
}

void Session::HookInstalled(const char* op) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  coverage_.Hooked(op);
}

bool Session::WantsDiscovery() {
  if (discoveries_.load(std::memory_order_relaxed) >= kMaxDiscoveries) return false;
  discoveries_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace trimtab::agent
