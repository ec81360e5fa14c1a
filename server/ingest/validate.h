// Checks of what a courier sends, before anything of it is kept. Pure functions.
#ifndef TRIMTAB_SERVER_INGEST_VALIDATE_H_
#define TRIMTAB_SERVER_INGEST_VALIDATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/ingest/counters.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

// Why a message is refused: for the counter, for the Refusal's code, and one sentence with the cause and the fix.
struct Rejection {
  RefusalReason reason = RefusalReason::kBadMessage;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  std::string message;
};

// The schema of one channel, by metric id.
class MetricTable {
 public:
  // The rows must have passed ValidateHello.
  explicit MetricTable(const google::protobuf::RepeatedPtrField<v1::MetricDescriptor>& metrics);
  const v1::MetricDescriptor* Find(uint32_t id) const;
  const std::vector<v1::MetricDescriptor>& rows() const { return by_id_; }

 private:
  std::vector<v1::MetricDescriptor> by_id_;  // ascending
};

std::optional<Rejection> ValidateHello(const v1::Hello& hello);

// Layers, heads and size only; run, rank and world size are checked by ValidateHello.
std::optional<Rejection> ValidateRankInfo(const v1::RankInfo& info);

// Sequences ascend within the batch; every block is of a known metric and has the shape, dtype and count that its
// axes ask for. Any value is accepted, NaN and infinities included.
std::optional<Rejection> ValidateSteps(const v1::StepBatch& batch, const MetricTable& metrics);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_VALIDATE_H_
