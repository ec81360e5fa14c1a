// C ABI of the delta-preserving step, spectral norms, activation statistics and rounding.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/instance.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/validate.h"

namespace trimtab::cpu {
namespace {

trimtab_kernel_status DoneOr(bool done) {
  return done ? TRIMTAB_KERNEL_OK : Fail(TRIMTAB_KERNEL_OUT_OF_MEMORY, "no memory for work space");
}

}  // namespace
}  // namespace trimtab::cpu

extern "C" {

trimtab_kernel_status trimtab_delta_preserving_step(const trimtab_delta_preserve* arguments) {
  trimtab::cpu::DeltaJob job;
  if (const auto status = trimtab::cpu::Resolve(arguments, &job); status != TRIMTAB_KERNEL_OK) return status;
  constexpr int64_t kRowsPerUnit = 64;
  const auto& d = job.d;
  const int64_t rows = d.batch * d.heads * d.rows;
  const auto& instance = trimtab::cpu::ActiveInstance();
  return trimtab::cpu::DoneOr(trimtab::cpu::ForEachUnit(
      d.parallel_for, d.parallel_context, (rows + kRowsPerUnit - 1) / kRowsPerUnit,
      static_cast<double>(kRowsPerUnit * d.columns * 16), [&](int64_t unit) {
        return instance.delta_step(job, unit * kRowsPerUnit, std::min(rows, (unit + 1) * kRowsPerUnit));
      }));
}

trimtab_kernel_status trimtab_spectral_norm(const trimtab_spectral* arguments) {
  trimtab_spectral s;
  if (const auto status = trimtab::cpu::Resolve(arguments, &s); status != TRIMTAB_KERNEL_OK) return status;
  const auto& instance = trimtab::cpu::ActiveInstance();
  const double work = 2.0 * static_cast<double>(s.rows / s.slices) * static_cast<double>(s.columns) * s.iterations;
  return trimtab::cpu::DoneOr(trimtab::cpu::ForEachUnit(s.parallel_for, s.parallel_context, s.slices, work,
                                                        [&](int64_t slice) { return instance.spectral(s, slice); }));
}

trimtab_kernel_status trimtab_activation(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                                         trimtab_activation_stats* stats) {
  if (const auto status = trimtab::cpu::CheckActivation(dtype, data, n, threshold, stats);
      status != TRIMTAB_KERNEL_OK) {
    return status;
  }
  return trimtab::cpu::DoneOr(trimtab::cpu::ActiveInstance().activation(dtype, data, n, threshold, stats));
}

float trimtab_round(float x, trimtab_storage storage) {
  const int shift = trimtab::cpu::kFp32MantissaBits - trimtab::cpu::MantissaBits(storage, TRIMTAB_F32);
  if (shift == 0 || x != x) return x;
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  u += (1u << (shift - 1)) - 1u + ((u >> shift) & 1u);
  u &= ~((1u << shift) - 1u);
  std::memcpy(&x, &u, sizeof x);
  return x;
}

}  // extern "C"
