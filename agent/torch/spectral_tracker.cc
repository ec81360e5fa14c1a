#include "agent/torch/spectral_tracker.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace trimtab::agent {

bool SpectralTracker::Set(int layer, const std::string& which, const ProjectionView& shape, int heads, Reader* reader,
                          std::string* error) {
  static constexpr std::string_view kNames = "qkvo";
  const size_t index = which.size() == 1 ? kNames.find(which[0]) : std::string_view::npos;
  if (index == std::string_view::npos) {
    *error = "which must be q, k, v or o, not \"" + which + "\"";
    return false;
  }
  if (layer < 0 || layer >= TRIMTAB_MAX_LAYERS) {
    *error = "layer " + std::to_string(layer) + " is out of 0 to " + std::to_string(TRIMTAB_MAX_LAYERS - 1);
    return false;
  }
  if (shape.rows <= 0 || shape.columns <= 0 || heads < 0 || (heads > 0 && shape.rows % heads != 0)) {
    *error = "a projection of " + std::to_string(shape.rows) + " x " + std::to_string(shape.columns) +
             " does not split into " + std::to_string(heads) + " heads";
    return false;
  }
  Row row;
  row.layer = layer;
  row.which = static_cast<Which>(index);
  row.heads = row.which == kQ || row.which == kK ? heads : 0;
  row.rows = shape.rows;
  row.columns = shape.columns;
  row.vector.resize(shape.columns);
  row.head_vectors.resize(static_cast<size_t>(row.heads) * shape.columns);
  row.head_sigma.resize(row.heads);
  row.head_residual.resize(row.heads);
  layers_ = std::max(layers_, static_cast<uint32_t>(layer) + 1);
  heads_ = std::max(heads_, static_cast<uint32_t>(row.heads));
  for (Row& known : rows_) {
    if (known.layer == row.layer && known.which == row.which) {
      tried_ -= known.tried;
      read_ -= known.read;
      row.reader = std::move(known.reader);
      row.reader.swap(*reader);
      known = std::move(row);
      return true;
    }
  }
  if (rows_.size() >= kMaxProjections) {
    *error = "more than " + std::to_string(kMaxProjections) + " projections";
    return false;
  }
  row.reader.swap(*reader);
  rows_.push_back(std::move(row));
  return true;
}

void SpectralTracker::Clear() { *this = SpectralTracker(); }

bool SpectralTracker::Visit(Row* row, trimtab_parallel_for parallel_for, void* parallel_context) {
  ProjectionView view;
  if (!row->reader(&view) || view.rows != row->rows || view.columns != row->columns) return false;
  trimtab_spectral s = {};
  s.struct_size = sizeof s;
  s.dtype = view.dtype;
  s.data = view.data;
  s.rows = view.rows;
  s.columns = view.columns;
  s.row_stride = view.row_stride;
  s.column_stride = view.column_stride;
  s.slices = 1;
  s.iterations = row->read ? kWarmIterations : kFirstIterations;
  s.vector = row->vector.data();
  s.sigma = &row->sigma;
  s.residual = &row->residual;
  s.parallel_for = parallel_for;
  s.parallel_context = parallel_context;
  if (trimtab_spectral_norm(&s) != TRIMTAB_KERNEL_OK) return false;
  if (row->heads > 0) {
    s.slices = row->heads;
    s.vector = row->head_vectors.data();
    s.sigma = row->head_sigma.data();
    s.residual = row->head_residual.data();
    if (trimtab_spectral_norm(&s) != TRIMTAB_KERNEL_OK) return false;
  }
  return true;
}

int SpectralTracker::Advance(double seconds, trimtab_parallel_for parallel_for, void* parallel_context) {
  const auto begin = std::chrono::steady_clock::now();
  int count = 0;
  while (static_cast<size_t>(count) < rows_.size()) {
    Row& row = rows_[next_];
    next_ = (next_ + 1) % rows_.size();
    const bool good = Visit(&row, parallel_for, parallel_context);
    if (!good) ++failures_;
    tried_ += !row.tried;
    row.tried = true;
    read_ += good && !row.read;
    row.read |= good;
    ++count;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >= seconds) break;
  }
  return count;
}

bool SpectralTracker::Has(Which which) const {
  return std::any_of(rows_.begin(), rows_.end(), [which](const Row& row) { return row.which == which; });
}

void SpectralTracker::Read(Which which, float* sigma, float* residual, float* by_head, uint32_t heads) const {
  for (const Row& row : rows_) {
    if (row.which != which) continue;
    sigma[row.layer] = row.sigma;
    residual[row.layer] = row.residual;
    for (int head = 0; head < row.heads && by_head != nullptr; ++head) {
      by_head[static_cast<size_t>(row.layer) * heads + head] = row.head_sigma[head];
    }
  }
}

}  // namespace trimtab::agent
