#include "server/policy/guard_watch.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/policy/describe.h"

namespace trimtab::server {

void StepHistory::Push(uint64_t step, double loss, double step_time_seconds) {
  ring_[next_] = {step, loss, step_time_seconds};
  next_ = (next_ + 1) % kSteps;
  if (size_ < kSteps) ++size_;
}

template <typename Take>
Window StepHistory::Before(uint64_t step, Take take) const {
  Window values(kBaselineSteps);
  for (size_t back = 1; back <= size_ && !values.full(); ++back) {
    const Entry& e = ring_[(next_ + kSteps - back) % kSteps];
    if (e.step < step && std::isfinite(take(e))) values.Push(take(e));
  }
  return values;
}

double StepHistory::MeanLossBefore(uint64_t step) const {
  return Before(step, [](const Entry& e) { return e.loss; }).Mean();
}

double StepHistory::MedianStepTimeBefore(uint64_t step) const {
  return Before(step, [](const Entry& e) { return e.step_time_seconds; }).Median();
}

std::optional<std::string> GuardWatch::Feed(uint64_t step, double loss, bool loss_nonfinite, double step_time_seconds) {
  if (step < effective_step_) return std::nullopt;
  if (loss_nonfinite && guard_.nonfinite_loss) {
    return absl::StrCat("the loss is not finite ", step - effective_step_, " steps after the switch");
  }
  if (std::isfinite(loss)) {
    losses_.Push(loss);
    const bool worse =
        guard_.loss_worse_by > 0 && std::isfinite(loss_before_) && losses_.Mean() > loss_before_ + guard_.loss_worse_by;
    worse_in_row_ = worse ? worse_in_row_ + 1 : 0;
    if (worse_in_row_ >= guard_.loss_worse_for_samples) {
      return absl::StrCat("the mean loss is ", NumberText(losses_.Mean()), ", before the switch it was ",
                          NumberText(loss_before_));
    }
  }
  if (std::isfinite(step_time_seconds)) {
    step_times_.Push(step_time_seconds);
    if (guard_.step_time_factor_max > 0 && step_time_before_ > 0 && step_times_.full() &&
        step_times_.Median() > guard_.step_time_factor_max * step_time_before_) {
      return absl::StrCat("a step takes ", NumberText(step_times_.Median()), " s, before the switch it took ",
                          NumberText(step_time_before_), " s");
    }
  }
  return std::nullopt;
}

nlohmann::json GuardWatch::Json() const {
  return {{"effective_step", effective_step_},
          {"loss_before", NumberJson(loss_before_)},
          {"loss_after", NumberJson(losses_.Mean())},
          {"step_time_before_seconds", NumberJson(step_time_before_)},
          {"step_time_after_seconds", NumberJson(step_times_.size() > 0 ? step_times_.Median() : kNotKnown)},
          {"loss_worse_by", guard_.loss_worse_by},
          {"step_time_factor_max", guard_.step_time_factor_max}};
}

}  // namespace trimtab::server
