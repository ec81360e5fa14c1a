#include "agent/core/step_record.h"

#include <sys/mman.h>

#include <cinttypes>
#include <cstring>

#include "agent/core/last_error.h"

namespace trimtab::agent {
namespace {

trimtab_status CheckShape(const trimtab_metric& metric, uint32_t dim0, uint32_t dim1) {
  switch (metric.axes) {
    case TRIMTAB_AXES_SCALAR:
      if (dim0 == 0 && dim1 == 0) return TRIMTAB_OK;
      return Fail(TRIMTAB_INVALID, "metric %s is a scalar: dim0 and dim1 must be 0, not %u and %u", metric.name, dim0,
                  dim1);
    case TRIMTAB_AXES_LAYER:
      if (dim1 != 0)
        return Fail(TRIMTAB_INVALID, "metric %s has no head axis: dim1 must be 0, not %u", metric.name, dim1);
      break;
    case TRIMTAB_AXES_LAYER_HEAD:
      if (dim1 == 0 || dim1 > kMaxHeads) {
        return Fail(TRIMTAB_INVALID, "metric %s: heads (dim1) must be 1 to %u, not %u", metric.name, kMaxHeads, dim1);
      }
      break;
  }
  if (dim0 == 0 || dim0 > TRIMTAB_MAX_LAYERS) {
    return Fail(TRIMTAB_INVALID, "metric %s: layers (dim0) must be 1 to %u, not %u", metric.name, TRIMTAB_MAX_LAYERS,
                dim0);
  }
  return TRIMTAB_OK;
}

}  // namespace

StepRecord::~StepRecord() {
  if (memory_ != nullptr) munmap(memory_, max_bytes_);
}

bool StepRecord::Reserve(uint64_t max_bytes) {
  void* memory = mmap(nullptr, max_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  memory_ = static_cast<uint8_t*>(memory);
  max_bytes_ = max_bytes;
  return true;
}

void StepRecord::Begin(uint64_t step, int64_t time_unix_nanos) {
  header_ = RecordHeader{};
  header_.magic = kRecordMagic;
  header_.step = step;
  header_.time_unix_nanos = time_unix_nanos;
  bytes_ = sizeof(RecordHeader);
  std::memset(present_, 0, sizeof(present_));
  open_ = true;
  spoilt_ = false;
}

trimtab_status StepRecord::Put(uint32_t metric, bool is_uint64, const void* data, uint32_t dim0, uint32_t dim1) {
  if (!open_) return Fail(TRIMTAB_INVALID, "no step was begun: call trimtab_step_begin first");
  const trimtab_metric* info = FindMetric(metric);
  if (info == nullptr) return Fail(TRIMTAB_INVALID, "there is no metric of id %u", metric);
  if ((info->is_uint64 != 0) != is_uint64) {
    return Fail(TRIMTAB_INVALID, "metric %s holds %s: use trimtab_step_put_%s", info->name,
                info->is_uint64 ? "uint64" : "float32", info->is_uint64 ? "u64" : "f32");
  }
  if (data == nullptr) return Fail(TRIMTAB_INVALID, "metric %s: data is NULL", info->name);
  if (const trimtab_status status = CheckShape(*info, dim0, dim1); status != TRIMTAB_OK) return status;
  uint64_t& word = present_[metric / 64];
  const uint64_t bit = uint64_t{1} << (metric % 64);
  if ((word & bit) != 0) return Fail(TRIMTAB_INVALID, "metric %s is in this step already", info->name);

  const uint64_t count = uint64_t{dim0 == 0 ? 1 : dim0} * (dim1 == 0 ? 1 : dim1);
  const uint64_t data_bytes = count * (is_uint64 ? 8 : 4);
  const uint64_t block_bytes = sizeof(BlockHeader) + RoundUp(data_bytes, 8);
  if (spoilt_ || bytes_ + block_bytes > max_bytes_) {
    spoilt_ = true;
    return Fail(TRIMTAB_FULL, "step %" PRIu64 " is larger than a record can be (%" PRIu64 " bytes): raise ring_bytes",
                header_.step, max_bytes_);
  }
  const BlockHeader block = {metric, static_cast<uint16_t>(info->axes), static_cast<uint16_t>(is_uint64), {dim0, dim1}};
  std::memcpy(memory_ + bytes_, &block, sizeof(block));
  std::memcpy(memory_ + bytes_ + sizeof(block), data, data_bytes);
  std::memset(memory_ + bytes_ + sizeof(block) + data_bytes, 0, block_bytes - sizeof(block) - data_bytes);
  bytes_ += block_bytes;
  ++header_.block_count;
  word |= bit;
  return TRIMTAB_OK;
}

uint8_t* StepRecord::Finish() {
  open_ = false;
  if (spoilt_) return nullptr;
  const uint64_t whole = RoundUp(bytes_, kRecordAlign);
  std::memset(memory_ + bytes_, 0, whole - bytes_);
  header_.bytes = static_cast<uint32_t>(whole);
  std::memcpy(memory_, &header_, sizeof(header_));
  return memory_;
}

}  // namespace trimtab::agent
