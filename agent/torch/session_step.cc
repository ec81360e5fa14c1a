// Observations, and the step boundary: what was measured goes into the ring, commands come out of it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <utility>

#include "agent/torch/session.h"

namespace trimtab::agent {
namespace {

constexpr double kSpectralShare = 0.25;  // of the overhead budget
constexpr uint64_t kSilentSteps = 2;     // without any attention call, before that is said

int64_t SteadyNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void Session::ObserveLoss(double value, double scale) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  activity_ = true;
  ++losses_ever_;
  ++loss_count_;
  loss_sum_ += scale != 0 ? value / scale : value;
  scalars_.loss_scale = static_cast<float>(scale);
}

void Session::ObserveGradNorm(double norm) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  scalars_.grad_norm = static_cast<float>(norm);
}

void Session::ObserveLearningRate(double rate) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  scalars_.learning_rate = static_cast<float>(rate);
}

void Session::ObserveActivation(int layer, const trimtab_activation_stats& stats) {
  if (!running() || layer < 0 || layer >= TRIMTAB_MAX_LAYERS) return;
  std::lock_guard guard(lock_);
  if (activations_.size() <= static_cast<size_t>(layer)) activations_.resize(layer + 1);
  trimtab_activation_stats& sum = activations_[layer];
  sum.count += stats.count;
  sum.nonfinite += stats.nonfinite;
  sum.above_threshold += stats.above_threshold;
  sum.sum += stats.sum;
  sum.sum_squares += stats.sum_squares;
  sum.abs_max = std::max(sum.abs_max, stats.abs_max);
}

bool Session::SetProjection(int layer, const std::string& which, const ProjectionView& shape, int heads,
                            SpectralTracker::Reader reader, std::string* error) {
  if (!running()) {
    *error = "not started";
    return false;
  }
  std::lock_guard guard(lock_);
  return spectral_.Set(layer, which, shape, heads, &reader, error);  // a replaced reader dies after the lock
}

void Session::AddOverhead(double seconds) {
  if (!running() || !(seconds > 0)) return;
  std::lock_guard guard(lock_);
  overhead_seconds_ += seconds;
}

void Session::Note(const std::string& note) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  coverage_.Note(note);
}

void Session::ResetStep() {
  stats_.Clear();
  for (trimtab_activation_stats& layer : activations_) layer = {};
  scalars_ = {};
  loss_sum_ = 0;
  loss_count_ = 0;
  overhead_seconds_ = 0;
  activity_ = false;
}

void Session::WriteStep(int64_t now_unix_nanos, double step_seconds) {
  const bool sampled_step = sampled();
  if (sampled_step && !stats_.empty()) {
    coverage_.last_sample_step = step_;
    coverage_.last_sample_unix_nanos = now_unix_nanos;
  }
  const bool spectral = sampled_step && spectral_.size() > 0;
  if (spectral) {
    spectral_.Advance(kSpectralShare * options_.overhead_budget * step_seconds * sampling_.stride(), parallel_for_,
                      nullptr);
    if (spectral_.failures() > 0) coverage_.Note("projections: some weights are not in memory at the step boundary");
  }
  if (agent_ == nullptr) return;
  StepReport report;
  report.step = step_;
  report.time_unix_nanos = now_unix_nanos;
  report.scalars = scalars_;
  if (loss_count_ > 0) report.scalars.loss = static_cast<float>(loss_sum_ / static_cast<double>(loss_count_));
  if (step_seconds > 0) report.scalars.step_time_seconds = static_cast<float>(step_seconds);
  report.scalars.agent_overhead_seconds = static_cast<float>(overhead_seconds_);
  report.scalars.attention_calls_passed = coverage_.calls_passed - step_passed_base_;
  report.stats = sampled_step ? &stats_ : nullptr;
  bool activations = false;
  for (const trimtab_activation_stats& layer : activations_) activations |= layer.count > 0;
  report.activations = activations ? &activations_ : nullptr;
  report.spectral = spectral && spectral_.complete() ? &spectral_ : nullptr;
  report.modes = &modes_;
  report.layers = static_cast<uint32_t>(ledger_.layers().size());
  const trimtab_status status = writer_.Write(agent_, report);
  if (status != TRIMTAB_OK && status != TRIMTAB_FORKED) {
    coverage_.Error(std::string("step record not written: ") + trimtab_last_error());
  }
}

void Session::ControlAtBoundary() {
  trimtab_command command;
  const bool taken = agent_ != nullptr && trimtab_poll_command(agent_, &command) == 1;
  LayerSet known;
  const auto& layers = ledger_.layers();
  for (size_t i = 0; taken && i < layers.size(); ++i) known[i] = layers[i].seen;
  modes_changed_ = latch_->AtBoundary(step_, UnixNanos(), known, options_.act, taken ? &command : nullptr, &modes_);
  if (modes_changed_) info_dirty_ = true;
  UpdateEngaged();
}

bool Session::CloseStep() {
  if (!running()) return false;
  std::lock_guard guard(lock_);
  if (explicit_steps_) return modes_changed_;
  // With every layer native no call is looked at; then a loss, or, in a job without one, any optimizer step counts.
  if (!activity_ && (engaged() || losses_ever_ > 0)) return modes_changed_;
  CloseStepLocked();
  return modes_changed_;
}

bool Session::EndStep(const StepValues& values) {
  if (!running()) return false;
  std::lock_guard guard(lock_);
  const bool first = !std::exchange(explicit_steps_, true);
  if (first && !activity_ && last_boundary_nanos_ != 0) return modes_changed_;
  if (values.loss) {
    loss_sum_ = *values.loss;
    loss_count_ = 1;
  }
  if (values.grad_norm) scalars_.grad_norm = static_cast<float>(*values.grad_norm);
  if (values.learning_rate) scalars_.learning_rate = static_cast<float>(*values.learning_rate);
  CloseStepLocked();
  return modes_changed_;
}

void Session::CloseStepLocked() {
  const int64_t begin = SteadyNanos();
  const int64_t now = UnixNanos();
  ledger_.CloseStep(step_, Sink());
  if (const uint64_t dropped = ledger_.dropped_without_backward(); dropped > reported_without_backward_) {
    coverage_.PassBy(last_op_, "no backward came", dropped - reported_without_backward_);
    reported_without_backward_ = dropped;
  }
  if (const uint64_t over = ledger_.layers_over_limit(); over > reported_over_limit_) {
    coverage_.PassBy(last_op_, "more than 1024 layers", over - reported_over_limit_);
    reported_over_limit_ = over;
  }
  const double step_seconds = last_boundary_nanos_ == 0 ? 0 : static_cast<double>(begin - last_boundary_nanos_) * 1e-9;
  last_boundary_nanos_ = begin;
  step_seconds_ = step_seconds;
  WriteStep(now, step_seconds);
  const double overhead = overhead_seconds_;
  step_passed_base_ = coverage_.calls_passed;
  ResetStep();
  if (step_ == options_.start_step + kSilentSteps && engaged() &&
      coverage_.calls_hooked + coverage_.calls_passed == 0) {
    coverage_.Note("no attention call has reached a hooked operator: the job computes attention by other means");
  }
  if (sampling_.StepDone(overhead, step_seconds)) coverage_.ReplaceNote("sampling: ", sampling_.Describe());
  ++step_;
  ControlAtBoundary();
  sampled_.store(sampling_.Sample(step_), std::memory_order_relaxed);
  PublishInfo(false);
  overhead_seconds_ += static_cast<double>(SteadyNanos() - begin) * 1e-9;
}

}  // namespace trimtab::agent
