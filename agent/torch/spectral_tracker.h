// Spectral norms of the attention projections by warm power iteration, a few matrices a step.
#ifndef TRIMTAB_AGENT_TORCH_SPECTRAL_TRACKER_H_
#define TRIMTAB_AGENT_TORCH_SPECTRAL_TRACKER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trimtab/agent.h"
#include "trimtab/kernels.h"

namespace trimtab::agent {

// One projection's weight as it lies in memory now: [rows, columns], output features first.
struct ProjectionView {
  trimtab_dtype dtype = TRIMTAB_F32;
  const void* data = nullptr;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
};

// Not thread-safe; the session's lock guards it. Allocates in Set only.
class SpectralTracker {
 public:
  static constexpr size_t kMaxProjections = 4 * TRIMTAB_MAX_LAYERS;
  static constexpr int kFirstIterations = 8;  // a cold start needs more than the warm ones
  static constexpr int kWarmIterations = 2;
  enum Which { kQ = 0, kK, kV, kO, kWhichCount };

  // Fills the view for this moment; false when the weight cannot be read now (sharded away, another device).
  using Reader = std::function<bool(ProjectionView*)>;

  // Adds or replaces the projection `which` of a layer, of which `heads` equal row blocks are measured on their own
  // (0: none). Keeps *reader, and what it holds, until Clear; a replaced reader comes back in *reader, for the caller
  // to destroy outside of any lock. False with *error for bad arguments.
  bool Set(int layer, const std::string& which, const ProjectionView& shape, int heads, Reader* reader,
           std::string* error);
  void Clear();

  // Visits projections round robin: at least one, then more while less than `seconds` went by. Returns how many.
  int Advance(double seconds, trimtab_parallel_for parallel_for, void* parallel_context);

  // True once every projection was tried and one could be read: from then on the tables are as complete as they get.
  bool complete() const { return read_ > 0 && tried_ == rows_.size(); }
  size_t size() const { return rows_.size(); }
  uint64_t failures() const { return failures_; }
  uint32_t layers() const { return layers_; }
  uint32_t heads() const { return heads_; }

  // Last values. sigma and residual: [layers]; by_head: [layers][heads], empty for v and o. Absent cells stay as given.
  void Read(Which which, float* sigma, float* residual, float* by_head, uint32_t heads) const;
  bool Has(Which which) const;

 private:
  struct Row {
    int layer = 0;
    Which which = kQ;
    int heads = 0;
    int64_t rows = 0, columns = 0;
    Reader reader;
    bool tried = false, read = false;
    float sigma = 0, residual = 0;
    std::vector<float> vector, head_vectors, head_sigma, head_residual;
  };
  bool Visit(Row* row, trimtab_parallel_for parallel_for, void* parallel_context);

  std::vector<Row> rows_;
  size_t next_ = 0, tried_ = 0, read_ = 0;
  uint32_t layers_ = 0, heads_ = 0;
  uint64_t failures_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_SPECTRAL_TRACKER_H_
