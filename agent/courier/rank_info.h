// Who a rank is, from the ring's header and the info text that its agent wrote.
#ifndef TRIMTAB_AGENT_COURIER_RANK_INFO_H_
#define TRIMTAB_AGENT_COURIER_RANK_INFO_H_

#include <string>

#include "absl/status/statusor.h"
#include "agent/core/ring_reader.h"
#include "trimtab/v1/common.pb.h"

namespace trimtab::courier {

// INVALID_ARGUMENT when the run name is empty or not UTF-8 (it could not be sent); a host name that is not UTF-8
// becomes
// "". Whether the rank makes sense is for the server to say.
absl::StatusOr<v1::RankInfo> RankInfoFromIdentity(const agent::RingIdentity& identity);

// Parses `json` (proto3 JSON of RankInfo; unknown fields are ignored) and puts the identity of `base` over it: run,
// rank, world_size, local_rank, incarnation, host, pid and act always come from the ring's header. INVALID_ARGUMENT
// when the text is too long, not JSON, not UTF-8, or turns into more than kMaxInfoBytes or lists longer than
// kMaxInfoEntries.
absl::StatusOr<v1::RankInfo> RankInfoFromJson(const v1::RankInfo& base, const std::string& json);

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_RANK_INFO_H_
