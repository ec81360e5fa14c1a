// The state of the shim in one process: which step it is, which mode each layer runs in, what was measured, and the
// ring it goes to. Knows nothing of torch.
#ifndef TRIMTAB_AGENT_TORCH_SESSION_H_
#define TRIMTAB_AGENT_TORCH_SESSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/torch/call_ledger.h"
#include "agent/torch/coverage.h"
#include "agent/torch/head_stats.h"
#include "agent/torch/json.h"
#include "agent/torch/options.h"
#include "agent/torch/sampling.h"
#include "agent/torch/spectral_tracker.h"
#include "agent/torch/step_writer.h"
#include "agent/torch/switch_latch.h"

namespace trimtab::agent {

// Held for microseconds by the training thread; never while calling into Python or the original kernels.
class SpinLock {
 public:
  void lock() noexcept;
  void unlock() noexcept { held_.clear(std::memory_order_release); }

 private:
  std::atomic_flag held_ = ATOMIC_FLAG_INIT;
};

// What a forward has to do.
struct ForwardPlan {
  int record = -1;        // -1: pass by
  uint64_t sequence = 0;  // of that record: it may be dropped before the call ends
  int layer = -1;         // best guess
  uint32_t mode = TRIMTAB_MODE_NATIVE;
  bool recomputed = false;
  bool shadow = false;  // compare this call with `shadow_mode`
  uint32_t shadow_mode = 0;
  bool measure = false;  // the step is sampled: a forward that can measure on the way should
};

// What a backward has to do.
struct BackwardPlan {
  int record = -1;  // -1: its forward is not known
  uint64_t sequence = 0;
  uint32_t mode = TRIMTAB_MODE_NATIVE;
  bool probe = false;   // measure
  bool whole = false;   // all statistics; else only those that need O and dO
  uint32_t rows = 0;    // rows a head to read
  uint64_t offset = 0;  // moves the rows from sample to sample
};

// What a loop says of a step by its own word; absent values keep what the hooks saw.
struct StepValues {
  std::optional<double> loss, grad_norm, learning_rate;
};

// One a process, never destroyed. All methods may be called from any thread and do nothing in a forked child.
class Session {
 public:
  static constexpr size_t kMaxInfoBytes = size_t{256} << 10;
  static constexpr int kMaxDiscoveries = 4096;

  static Session& Get();

  // --- life -------------------------------------------------------------------------------------------------------
  // Takes options and clears everything measured before. False when already running or the options are wrong.
  bool Configure(const std::string& options_json, trimtab_parallel_for parallel_for, std::string* error);
  // Opens the ring; a second call merges the info. `json` may give run, rank, world_size, local_rank, info.
  bool OpenRing(const std::string& json, std::string* error);
  void Stop();
  bool running() const { return running_.load(std::memory_order_acquire); }
  // In a child of the process that loaded the library: nothing works here, the original kernels run.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }

  // The one load an idle hook does: 0 when calls need not be looked at.
  bool engaged() const { return engaged_.load(std::memory_order_relaxed); }
  trimtab_storage storage() const { return options_.storage; }  // SAME: no fault injection
  const char* storage_name() const { return options_.storage_name.c_str(); }
  double shadow_tolerance() const { return options_.shadow_tolerance; }
  trimtab_parallel_for parallel_for() const { return parallel_for_; }

  // --- calls ------------------------------------------------------------------------------------------------------
  // A forward that may be part of training. in_backward: called inside a backward, so it is a recomputation.
  ForwardPlan BeginForward(const ForwardCall& call, bool in_backward);
  // Its output lies at `key`. stats: what the forward measured, empty when it did not; seconds: cost of the agent in
  // this call.
  void EndForward(const ForwardPlan& plan, const void* key, std::span<const trimtab_head_stats> stats, double seconds);
  void ReportShadow(int layer, bool good, const std::string& detail);
  // A call left alone. key: its output's storage, or nullptr. training: it could have been part of training.
  void PassBy(const char* op, const char* reason, const void* key, bool training);
  BackwardPlan BeginBackward(const char* op, const void* key);
  // stats: what was measured, empty when not; seconds: cost of the agent in this call.
  void EndBackward(const BackwardPlan& plan, std::span<const trimtab_head_stats> stats, double seconds);
  void HookFailed(const char* op, const std::string& what);
  void HookInstalled(const char* op);
  // Whether to ask for the layer of a call that nobody named; at most kMaxDiscoveries times.
  bool WantsDiscovery();
  void StopDiscovery() { discoveries_.store(kMaxDiscoveries, std::memory_order_relaxed); }

  // --- observations -----------------------------------------------------------------------------------------------
  void ObserveLoss(double value, double scale);
  void ObserveGradNorm(double norm);
  void ObserveLearningRate(double rate);
  // True when the step is sampled, so that reading x is wanted.
  bool sampled() const { return sampled_.load(std::memory_order_relaxed); }
  void ObserveActivation(int layer, const trimtab_activation_stats& stats);
  bool SetProjection(int layer, const std::string& which, const ProjectionView& shape, int heads,
                     SpectralTracker::Reader reader, std::string* error);
  void SetInfo(const std::string& json);
  void AddOverhead(double seconds);
  void Note(const std::string& note);

  // --- step boundary ----------------------------------------------------------------------------------------------
  // Closes the step when anything of training happened since the last one. True when modes changed.
  bool CloseStep();
  // The same by the training loop's own word. From the first call on, steps end here only: CloseStep does nothing. A
  // first call right after CloseStep ends no step of its own; its values belong to the step that was just closed, and
  // are dropped.
  bool EndStep(const StepValues& values);
  void SetModes(std::span<const int64_t> modes);
  std::string Status();

 private:
  Session();
  static void ForkedChild();

  void UpdateEngaged();
  void CloseStepLocked();
  void ControlAtBoundary();
  void WriteStep(int64_t now_unix_nanos, double step_seconds);
  void ResetStep();
  void PublishInfo(bool force);
  Json InfoJson();
  Json LayersJson();
  bool OpenRingLocked(std::string* error);
  void MergeInfo(const Json& info);
  CallLedger::Sink Sink();

  SpinLock lock_;
  std::atomic<bool> running_{false}, engaged_{false}, sampled_{true}, forked_{false};
  std::atomic<int> discoveries_{0};
  ShimOptions options_;
  trimtab_parallel_for parallel_for_ = nullptr;
  trimtab_agent* agent_ = nullptr;

  // Guarded by lock_.
  uint64_t step_ = 1;
  LayerModes modes_;
  CallLedger ledger_;
  StepStats stats_;
  Coverage coverage_;
  SamplingPlan sampling_;
  std::unique_ptr<SwitchLatch> latch_;
  SpectralTracker spectral_;
  StepWriter writer_;
  std::vector<trimtab_activation_stats> activations_;
  StepScalars scalars_;
  double loss_sum_ = 0;
  uint64_t loss_count_ = 0, losses_ever_ = 0;
  uint64_t step_passed_base_ = 0;
  double overhead_seconds_ = 0, step_seconds_ = 0;
  bool activity_ = false, modes_changed_ = false, explicit_steps_ = false;
  int64_t last_boundary_nanos_ = 0;  // steady clock
  const char* last_op_ = "";
  Json info_;
  bool info_dirty_ = false;
  int64_t info_written_nanos_ = 0;
  uint64_t info_version_ = 0;
  size_t info_layers_ = 0;
  uint64_t reported_without_backward_ = 0, reported_over_limit_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_SESSION_H_
