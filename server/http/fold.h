// Picks or folds cells of a block: one head, one layer, or all heads of a layer by the metric's aggregation.
#ifndef TRIMTAB_SERVER_HTTP_FOLD_H_
#define TRIMTAB_SERVER_HTTP_FOLD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "trimtab/v1/common.pb.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

// Layers and heads of a block; 1 for an absent axis.
struct BlockShape {
  uint32_t layers = 1, heads = 1;
};
BlockShape ShapeOf(const v1::Block& block);

// Value of a cell as float; NaN when the block does not hold it (malformed or ragged).
float Cell(const v1::Block& block, uint32_t layer, uint32_t head);

// One layer. With `head` that cell; without, all heads folded: MAX, SUM, LAST (of the last head), else the mean.
// NaN in a layered block means "no sample": it gives way to any value; NaN when there is none.
float FoldLayer(const v1::Block& block, v1::Aggregation aggregation, uint32_t layer, std::optional<uint32_t> head);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_FOLD_H_
