// Picks one layer, one head, or one cell out of a dense block.
#ifndef TRIMTAB_SERVER_QUERY_SELECT_CELL_H_
#define TRIMTAB_SERVER_QUERY_SELECT_CELL_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

// [layers, heads]: layer and head give shape [], layer alone [heads], head alone [layers]. [layers]: layer gives [].
// Neither leaves the block as it is. OUT_OF_RANGE says what there is; INVALID_ARGUMENT when the block has no such axis.
absl::Status SelectCell(std::optional<uint32_t> layer, std::optional<uint32_t> head, v1::Block* block);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_QUERY_SELECT_CELL_H_
