// One attention call with its tensors, and the same call restated in FP64.
#ifndef TRIMTAB_TESTS_UNIT_KERNELS_PROBLEM_H_
#define TRIMTAB_TESTS_UNIT_KERNELS_PROBLEM_H_

#include <cstdint>
#include <random>
#include <vector>

#include "tests/unit/kernels/strided_tensor.h"
#include "trimtab/kernels.h"

namespace trimtab::testing {

struct Shape {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, head_dim = 1, value_dim = 1;
};

struct Problem {
  trimtab_attention call{};
  StridedTensor q, k, v, out, low, lse, grad_out, grad_q, grad_k, grad_v, additive_mask;
  std::vector<uint8_t> bool_mask;  // [batch, heads, queries, keys]
  std::vector<trimtab_head_stats> stats;

  Problem(const Shape& shape, trimtab_dtype dtype, std::mt19937* layouts = nullptr);

  // Q, K ~ N(0, deviation); V and dO ~ N(mean, deviation).
  void Fill(std::mt19937& random, double qk_deviation = 1.0, double v_mean = 0.0, double v_deviation = 1.0,
            double grad_mean = 0.0, double grad_deviation = 1.0);
  void SetBoolMask(std::mt19937& random, double visible_share);
  void SetAdditiveMask(std::mt19937& random, trimtab_dtype dtype, double masked_share);

  // Every call reads `call`; the tensors of it are filled in here.
  trimtab_kernel_status Forward(bool with_stats = false);
  trimtab_kernel_status Backward(bool with_stats = false);
  trimtab_kernel_status Probe(int64_t row_begin, int64_t row_step, bool with_output);
  trimtab_kernel_status DeltaStep();  // `out` becomes the delta-preserving one

  // `call.storage`, or the format of the dtype.
  trimtab_storage storage() const;
  bool Visible(int64_t b, int64_t h, int64_t row, int64_t key) const;
  // Scaled score with the additive mask; -Inf where not visible.
  double Score(int64_t b, int64_t h, int64_t row, int64_t key) const;

 private:
  trimtab_attention Filled(bool with_stats);
};

// FP64 results of a problem with unrounded P and V; V as rounded to storage when `rounded_values`.
struct Reference {
  std::vector<double> out, lse, grad_q, grad_k, grad_v;  // contiguous
};
Reference ComputeReference(const Problem& problem, bool with_grads, bool rounded_values = false);

// Largest |a - b| / (1 + |b|) over all elements; Inf when exactly one of a pair is NaN, or infinities differ.
double MaxError(const StridedTensor& a, const std::vector<double>& b);
// ||a - b|| / ||b||.
double NormError(const StridedTensor& a, const std::vector<double>& b);

// FP64 statistics of all rows, and of those with row % step == begin.
std::vector<trimtab_head_stats> ReferenceStats(const Problem& problem, int64_t begin = 0, int64_t step = 1);

}  // namespace trimtab::testing
#endif
