// Builds one step's record in memory of its own: nothing of it is in the ring before it is complete.
#ifndef TRIMTAB_AGENT_CORE_STEP_RECORD_H_
#define TRIMTAB_AGENT_CORE_STEP_RECORD_H_

#include <cstddef>
#include <cstdint>

#include "agent/core/metric_schema.h"
#include "agent/core/ring_format.h"

namespace trimtab::agent {

class StepRecord {
 public:
  StepRecord() = default;
  ~StepRecord();
  StepRecord(const StepRecord&) = delete;
  StepRecord& operator=(const StepRecord&) = delete;

  // Reserves room for a record of `max_bytes` (a multiple of kRecordAlign). False when there is no memory.
  bool Reserve(uint64_t max_bytes);

  // Drops what was there and starts a record.
  void Begin(uint64_t step, int64_t time_unix_nanos);
  // Appends count = product of the dims values of 4 or 8 bytes. TRIMTAB_INVALID when the metric is in already or the
  // shape is not the metric's; TRIMTAB_FULL when it no longer fits, which spoils the record.
  trimtab_status Put(uint32_t metric, bool is_uint64, const void* data, uint32_t dim0, uint32_t dim1);
  // Completes all but sequence, position and checksum and returns the record; nullptr when it was spoilt. Ends it.
  uint8_t* Finish();

  bool open() const { return open_; }
  uint64_t max_bytes() const { return max_bytes_; }

 private:
  uint8_t* memory_ = nullptr;
  uint64_t max_bytes_ = 0;
  uint64_t bytes_ = 0;
  RecordHeader header_ = {};
  bool open_ = false;
  bool spoilt_ = false;
  uint64_t present_[kMetricIdEnd / 64] = {};
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_STEP_RECORD_H_
