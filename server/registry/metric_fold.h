// The latest value of one metric, folded over ranks.
//
// Ranks report one step at slightly different times, so two steps are kept: the newest and the one before. The value
// shown is the newest step's once as many ranks have reported it as reported the one before.
//
// Folding is cell by cell by the metric's aggregation. A block that is larger on one rank (pipeline stages) widens the
// result. In [layer] and [layer, head] blocks NaN means "no sample" and gives way to any value; in a scalar NaN is the
// value, and wins over the others, so that one bad rank shows.
#ifndef TRIMTAB_SERVER_REGISTRY_METRIC_FOLD_H_
#define TRIMTAB_SERVER_REGISTRY_METRIC_FOLD_H_

#include <cstdint>
#include <vector>

#include "trimtab/v1/common.pb.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

class MetricFold {
 public:
  explicit MetricFold(v1::MetricDescriptor descriptor) : descriptor_(std::move(descriptor)) {}

  // `restarted`: the rank began a new incarnation, so a step below the newest starts over instead of being late.
  void Add(uint64_t step, const v1::Block& block, bool restarted);

  bool empty() const { return newest_.ranks == 0; }
  uint64_t step() const { return shown().step; }
  const v1::Block& value() const { return shown().block; }
  const v1::MetricDescriptor& descriptor() const { return descriptor_; }

 private:
  struct Slot {
    uint64_t step = 0;
    uint32_t ranks = 0;
    v1::Block block;
    std::vector<uint32_t> counts;  // ranks with a value, by cell; for MEAN
  };

  const Slot& shown() const { return newest_.ranks >= before_.ranks ? newest_ : before_; }
  void FoldInto(Slot* slot, const v1::Block& block) const;

  v1::MetricDescriptor descriptor_;
  Slot newest_, before_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_REGISTRY_METRIC_FOLD_H_
