// C ABI of forward, backward and probe: check, split, merge statistics in a fixed order.
#include <cmath>
#include <cstring>

#include "kernels/cpu/instance.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/validate.h"

namespace trimtab::cpu {
namespace {

trimtab_kernel_status OutOfMemory() { return Fail(TRIMTAB_KERNEL_OUT_OF_MEMORY, "no memory for work space"); }

void Reset(trimtab_head_stats* stats, int64_t n) {
  std::memset(stats, 0, static_cast<size_t>(n) * sizeof *stats);
  for (int64_t i = 0; i < n; ++i) stats[i].max_logit = -INFINITY;
}

void Add(const trimtab_head_stats& from, trimtab_head_stats* to) {
  to->rows += from.rows;
  to->trivial_rows += from.trivial_rows;
  to->empty_rows += from.empty_rows;
  to->repeated_max_rows += from.repeated_max_rows;
  to->p_one_count += from.p_one_count;
  to->tie_rows += from.tie_rows;
  to->scores += from.scores;
  to->nonfinite_scores += from.nonfinite_scores;
  to->entropy_sum += from.entropy_sum;
  to->sink_share_sum += from.sink_share_sum;
  to->residual_mass_sum += from.residual_mass_sum;
  to->delta_rows += from.delta_rows;
  to->delta_residual_sum += from.delta_residual_sum;
  to->delta_residual_sum_squares += from.delta_residual_sum_squares;
  to->output_error_sum_squares += from.output_error_sum_squares;
  to->output_sum_squares += from.output_sum_squares;
  to->max_logit = from.max_logit > to->max_logit ? from.max_logit : to->max_logit;
}

// One slot of statistics for each (batch, head), so that units never share one and the sum has one order.
class UnitStats {
 public:
  UnitStats(trimtab_head_stats* result, int64_t batches, int64_t heads)
      : result_(result), batches_(batches), heads_(heads) {
    if (result_ == nullptr) return;
    constexpr int64_t kFloats = sizeof(trimtab_head_stats) / sizeof(float);
    slots_ = reinterpret_cast<trimtab_head_stats*>(ThreadScratch(Slot::kUnitStats, batches * heads * kFloats));
    if (slots_ != nullptr) Reset(slots_, batches * heads);
  }

  bool ok() const { return result_ == nullptr || slots_ != nullptr; }
  trimtab_head_stats* slot(int64_t index) const { return slots_ == nullptr ? nullptr : slots_ + index; }
  void Merge() const {
    if (slots_ == nullptr) return;
    for (int64_t i = 0; i < batches_ * heads_; ++i) Add(slots_[i], result_ + i % heads_);
  }

 private:
  trimtab_head_stats* result_;
  int64_t batches_, heads_;
  trimtab_head_stats* slots_ = nullptr;
};

double Scores(int64_t rows, int64_t keys) { return static_cast<double>(rows) * static_cast<double>(keys); }

static_assert(sizeof(trimtab_head_stats) % sizeof(float) == 0 && alignof(trimtab_head_stats) <= 64);

}  // namespace
}  // namespace trimtab::cpu

using trimtab::cpu::ActiveInstance;
using trimtab::cpu::ForEachUnit;
using trimtab::cpu::Resolve;
using trimtab::cpu::Scores;

extern "C" {

void trimtab_head_stats_reset(trimtab_head_stats* stats, int64_t heads) { trimtab::cpu::Reset(stats, heads); }

trimtab_kernel_status trimtab_attention_forward(const trimtab_attention* arguments) {
  trimtab::cpu::AttentionJob job;
  if (const auto status = Resolve(arguments, trimtab::cpu::Use::kForward, &job); status != TRIMTAB_KERNEL_OK) {
    return status;
  }
  const trimtab_attention& a = job.a;
  if (a.batch == 0 || a.queries == 0) return TRIMTAB_KERNEL_OK;
  const trimtab::cpu::UnitStats stats(a.stats, a.batch, a.heads);
  if (!stats.ok()) return trimtab::cpu::OutOfMemory();
  const auto& instance = ActiveInstance();
  const double work = Scores(a.queries, a.keys) * static_cast<double>(a.head_dim + a.value_dim);
  if (!ForEachUnit(a.parallel_for, a.parallel_context, a.batch * a.heads, work,
                   [&](int64_t unit) { return instance.forward(job, unit, stats.slot(unit)); })) {
    return trimtab::cpu::OutOfMemory();
  }
  stats.Merge();
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status trimtab_attention_backward(const trimtab_attention_grad* arguments) {
  trimtab::cpu::GradJob job;
  if (const auto status = Resolve(arguments, &job); status != TRIMTAB_KERNEL_OK) return status;
  const trimtab_attention& a = job.attention.a;
  if (a.batch == 0) return TRIMTAB_KERNEL_OK;
  const trimtab::cpu::UnitStats stats(a.stats, a.batch, a.heads);
  if (!stats.ok()) return trimtab::cpu::OutOfMemory();
  const auto& instance = ActiveInstance();
  const double work =
      Scores(a.queries, a.keys) * static_cast<double>((3 * a.head_dim + 2 * a.value_dim) * job.attention.group);
  if (!ForEachUnit(a.parallel_for, a.parallel_context, a.batch * a.kv_heads, work, [&](int64_t unit) {
        return instance.backward(job, unit, stats.slot(unit * job.attention.group));
      })) {
    return trimtab::cpu::OutOfMemory();
  }
  stats.Merge();
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status trimtab_attention_probe(const trimtab_probe* arguments) {
  trimtab::cpu::ProbeJob job;
  if (const auto status = Resolve(arguments, &job); status != TRIMTAB_KERNEL_OK) return status;
  const trimtab_attention& a = job.attention.a;
  const int64_t batches = a.batch <= job.batch_begin ? 0 : (a.batch - job.batch_begin - 1) / job.batch_step + 1;
  if (batches == 0 || job.rows == 0) return TRIMTAB_KERNEL_OK;
  const trimtab::cpu::UnitStats stats(a.stats, batches, a.heads);
  if (!stats.ok()) return trimtab::cpu::OutOfMemory();
  const auto& instance = ActiveInstance();
  const double work = Scores(job.rows, a.keys) * static_cast<double>(a.head_dim + a.value_dim);
  if (!ForEachUnit(a.parallel_for, a.parallel_context, batches * a.heads, work,
                   [&](int64_t unit) { return instance.probe(job, unit, stats.slot(unit)); })) {
    return trimtab::cpu::OutOfMemory();
  }
  stats.Merge();
  return TRIMTAB_KERNEL_OK;
}

}  // extern "C"
