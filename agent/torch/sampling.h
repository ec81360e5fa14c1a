// Decides which steps are sampled and how many rows the probe reads, so that the agent stays within its budget.
#ifndef TRIMTAB_AGENT_TORCH_SAMPLING_H_
#define TRIMTAB_AGENT_TORCH_SAMPLING_H_

#include <cstdint>
#include <string>

namespace trimtab::agent {

// A ladder of levels, each about half as costly as the one before: first fewer rows (down to kMinRows), then a wider
// stride (up to kMaxStride). One rung at a time; up as soon as the share of a window exceeds the budget, down only
// when the cheaper level used less than 40 % of it. Not thread-safe.
class SamplingPlan {
 public:
  static constexpr uint32_t kMinRows = 8;
  static constexpr uint32_t kMaxStride = 4096;
  static constexpr int kWindowSteps = 32;  // steps that are looked at before a rung is changed
  static constexpr int kWarmUpSteps = 4;   // first steps: compilation, page faults

  // adaptive = false keeps the base plan (the fault injector measures every step).
  void Configure(uint32_t base_stride, uint32_t base_rows, double budget, bool adaptive);

  // Accounts a finished step; true when the plan changed.
  bool StepDone(double overhead_seconds, double step_seconds);
  // Whether the step is sampled. Call once a step, ascending; at least `stride` steps lie between two samples.
  bool Sample(uint64_t step);

  uint32_t stride() const { return stride_; }
  uint32_t rows() const { return rows_; }
  // Share of time in the last full window; of all steps so far before there is one.
  double share() const { return share_; }
  std::string Describe() const;

 private:
  void Apply();

  uint32_t base_stride_ = 1, base_rows_ = 64, stride_ = 1, rows_ = 64;
  double budget_ = 0.01;
  bool adaptive_ = true;
  int level_ = 0, max_level_ = 0, seen_ = 0, window_ = 0;
  double overhead_ = 0, time_ = 0, share_ = 0;
  uint64_t next_sample_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_SAMPLING_H_
