#include "agent/torch/head_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trimtab::agent {

void ClearHeadStats(std::span<trimtab_head_stats> stats) {
  trimtab_head_stats zero = {};
  zero.max_logit = -std::numeric_limits<float>::infinity();
  std::fill(stats.begin(), stats.end(), zero);
}

void AddDeltaStats(const trimtab_head_stats& from, trimtab_head_stats* to) {
  to->delta_rows += from.delta_rows;
  to->delta_residual_sum += from.delta_residual_sum;
  to->delta_residual_sum_squares += from.delta_residual_sum_squares;
  to->output_error_sum_squares += from.output_error_sum_squares;
  to->output_sum_squares += from.output_sum_squares;
}

void AddHeadStats(const trimtab_head_stats& from, trimtab_head_stats* to) {
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
  AddDeltaStats(from, to);
  // A NaN maximum stays: it is data.
  if (std::isnan(from.max_logit) || from.max_logit > to->max_logit) to->max_logit = from.max_logit;
}

bool StepStats::Add(int layer, std::span<const trimtab_head_stats> stats) {
  if (layer < 0 || layer >= TRIMTAB_MAX_LAYERS) return false;
  while (cells_.size() <= static_cast<size_t>(layer)) cells_.emplace_back();
  auto& row = cells_[layer];
  if (row.size() < stats.size()) {
    const size_t known = row.size();
    row.resize(stats.size());
    ClearHeadStats(std::span(row).subspan(known));
    heads_ = std::max(heads_, static_cast<uint32_t>(row.size()));
  }
  for (size_t head = 0; head < stats.size(); ++head) AddHeadStats(stats[head], &row[head]);
  ++calls_;
  return true;
}

void StepStats::Clear() {
  for (auto& row : cells_) ClearHeadStats(row);
  calls_ = 0;
}

const trimtab_head_stats* StepStats::Cell(uint32_t layer, uint32_t head) const {
  return layer < cells_.size() && head < cells_[layer].size() ? &cells_[layer][head] : nullptr;
}

CellMetrics Summarize(const trimtab_head_stats& stats) {
  CellMetrics m = {};
  if (stats.rows + stats.trivial_rows > 0) m.max_attention_logit = stats.max_logit;
  if (stats.rows > 0) {
    const double rows = static_cast<double>(stats.rows);
    m.repeated_max_share = static_cast<float>(static_cast<double>(stats.repeated_max_rows) / rows);
    m.attention_entropy = static_cast<float>(stats.entropy_sum / rows);
    m.sink_share = static_cast<float>(stats.sink_share_sum / rows);
  }
  if (stats.scores > 0) {
    m.p_one_share = static_cast<float>(static_cast<double>(stats.p_one_count) / static_cast<double>(stats.scores));
  }
  m.delta_residual_sum = static_cast<float>(stats.delta_residual_sum);
  m.delta_residual_sum_squares = static_cast<float>(stats.delta_residual_sum_squares);
  if (stats.delta_rows > 1) {
    const double n = static_cast<double>(stats.delta_rows);
    const double mean = stats.delta_residual_sum / n;
    const double variance = (stats.delta_residual_sum_squares - n * mean * mean) / (n - 1);
    if (variance > 0 || std::isnan(variance)) m.delta_residual_z = static_cast<float>(mean / std::sqrt(variance / n));
  }
  if (stats.output_sum_squares > 0) {
    m.attention_output_error = static_cast<float>(std::sqrt(stats.output_error_sum_squares / stats.output_sum_squares));
  }
  return m;
}

}  // namespace trimtab::agent
