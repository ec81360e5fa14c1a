#include "agent/torch/sampling.h"

#include <algorithm>

namespace trimtab::agent {

void SamplingPlan::Configure(uint32_t base_stride, uint32_t base_rows, double budget, bool adaptive) {
  *this = SamplingPlan();
  base_stride_ = std::max(1u, base_stride);
  base_rows_ = std::max(1u, base_rows);
  budget_ = budget;
  adaptive_ = adaptive;
  uint32_t rows = base_rows_;
  for (; rows / 2 >= kMinRows; rows /= 2) ++max_level_;
  for (uint64_t stride = base_stride_; stride * 2 <= std::max(kMaxStride, base_stride_); stride *= 2) ++max_level_;
  Apply();
}

void SamplingPlan::Apply() {
  rows_ = base_rows_;
  stride_ = base_stride_;
  for (int i = 0; i < level_; ++i) {
    if (rows_ / 2 >= kMinRows) {
      rows_ /= 2;
    } else {
      stride_ *= 2;
    }
  }
}

bool SamplingPlan::StepDone(double overhead_seconds, double step_seconds) {
  if (step_seconds <= 0 || ++seen_ <= kWarmUpSteps) return false;
  overhead_ += overhead_seconds;
  time_ += step_seconds;
  if (seen_ <= kWarmUpSteps + kWindowSteps) share_ = overhead_ / time_;
  // A window holds at least two samples, or its share would say nothing about the plan.
  if (++window_ < std::max<int64_t>(kWindowSteps, 2 * int64_t{stride_})) return false;
  share_ = overhead_ / time_;
  window_ = 0;
  overhead_ = time_ = 0;
  if (!adaptive_) return false;
  const int before = level_;
  if (share_ > budget_) level_ = std::min(level_ + 1, max_level_);
  if (share_ < 0.4 * budget_) level_ = std::max(level_ - 1, 0);
  if (level_ == before) return false;
  Apply();
  return true;
}

bool SamplingPlan::Sample(uint64_t step) {
  if (step < next_sample_) return false;
  next_sample_ = step + stride_;
  return true;
}

std::string SamplingPlan::Describe() const {
  return "every " + std::to_string(stride_) + (stride_ == 1 ? " step, " : " steps, ") + std::to_string(rows_) +
         " probe rows a head";
}

}  // namespace trimtab::agent
