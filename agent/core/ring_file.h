// Makes the file of a new ring: right size, really allocated, header complete, then named.
#ifndef TRIMTAB_AGENT_CORE_RING_FILE_H_
#define TRIMTAB_AGENT_CORE_RING_FILE_H_

#include <cstdint>

#include "agent/core/ring_format.h"

namespace trimtab::agent {

inline constexpr uint32_t kMaxPathBytes = 4096;

// What goes into the header. Text is checked by the caller and copied.
struct RingFileOptions {
  const char* ring_dir = nullptr;
  const char* run = nullptr;
  uint32_t rank = 0, world_size = 0, local_rank = 0;
  uint64_t data_bytes = 0;  // multiple of kPageBytes, kMinRingBytes to kMaxRingBytes
  bool act = false;
};

// A mapped ring file. Unmaps on destruction; the file stays.
class RingMapping {
 public:
  RingMapping() = default;
  ~RingMapping();
  RingMapping(const RingMapping&) = delete;
  RingMapping& operator=(const RingMapping&) = delete;

  // Creates `<ring_dir>/<16 hex digits of incarnation>-<rank>.ring`, mode 0600. ring_dir is made with mode 0700 when it
  // is missing, and refused when it is a link, of another user, or open to others. All pages are allocated here, so
  // that a full disk fails this call and not a later store. TRIMTAB_IO with trimtab_last_error on failure; then nothing
  // is left behind.
  trimtab_status Create(const RingFileOptions& options);

  uint8_t* base() const { return base_; }
  uint64_t data_bytes() const { return data_bytes_; }
  const char* path() const { return path_; }

 private:
  uint8_t* base_ = nullptr;
  uint64_t file_bytes_ = 0;
  uint64_t data_bytes_ = 0;
  char path_[kMaxPathBytes] = "";
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_RING_FILE_H_
