// Turns a record of a ring into the Step that goes over the wire and into the spool.
#ifndef TRIMTAB_AGENT_COURIER_STEP_ENCODER_H_
#define TRIMTAB_AGENT_COURIER_STEP_ENCODER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/core/ring_reader.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::courier {

// The built-in schema as the Hello carries it.
std::vector<v1::MetricDescriptor> MetricSchema();

class StepEncoder {
 public:
  // Serialises `step` as v1.Step. Blocks that the schema does not know, or whose axes or type contradict it, are left
  // out and counted. RESOURCE_EXHAUSTED when the result is larger than kMaxStepBytes. One copy of the values; no
  // allocation after warm-up but the result's.
  absl::Status Encode(const agent::RingStep& step, std::string* bytes);

  uint64_t bad_blocks() const { return bad_blocks_; }
  // Why the last block was left out; "" if none was.
  const std::string& bad_block_reason() const { return bad_block_reason_; }

 private:
  v1::Step step_;
  uint64_t bad_blocks_ = 0;
  std::string bad_block_reason_;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_STEP_ENCODER_H_
