// A run whose numbers follow a formula: one head of one layer runs away from step `runaway_step` on, and the loss after
// it, until that layer is switched to the stabilized kernel. Deterministic; the same on every rank but for the rank's
// own shift of the loss.
#ifndef TRIMTAB_TESTS_E2E_PAGE_SYNTHETIC_RUN_H_
#define TRIMTAB_TESTS_E2E_PAGE_SYNTHETIC_RUN_H_

#include <cstdint>
#include <vector>

#include "trimtab/v1/telemetry.pb.h"

namespace trimtab {

class SyntheticRun {
 public:
  struct Options {
    uint32_t layers = 4, heads = 8;
    uint64_t runaway_step = 300;
    uint32_t runaway_layer = 1, runaway_head = 3;
    bool odd_values = false;  // NaN and infinity in single cells and in the gradient norm
  };
  explicit SyntheticRun(const Options& options);

  // Advances to `step` and returns its blocks.
  v1::Step Step(uint64_t step, uint32_t rank);
  std::vector<v1::KernelMode>& modes() { return modes_; }

 private:
  float Logit(uint64_t step, uint32_t layer, uint32_t head) const;

  const Options options_;
  std::vector<v1::KernelMode> modes_;
  double excess_ = 1;  // factor of the runaway head's logit
};

// The built-in schema as a courier sends it.
std::vector<v1::MetricDescriptor> BuiltInMetrics();

}  // namespace trimtab
#endif  // TRIMTAB_TESTS_E2E_PAGE_SYNTHETIC_RUN_H_
