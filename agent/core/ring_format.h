// Layout of a ring file, version 1. Described in docs/ring.md; the writer maps it, the reader copies out of it.
//
// All numbers are in the byte order of the machine: the file never leaves it. Positions in the byte ring are counted
// from the ring's birth and never wrap; a position's place in the file is kDataOffset + position % data_bytes.
#ifndef TRIMTAB_AGENT_CORE_RING_FORMAT_H_
#define TRIMTAB_AGENT_CORE_RING_FORMAT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "trimtab/agent.h"

namespace trimtab::agent {

inline constexpr uint64_t kRingMagic = 0x474E49524D495254u;  // "TRIMRING" in memory order
inline constexpr uint32_t kRingVersion = 1;
inline constexpr uint32_t kRecordMagic = 0x50455453u;   // "STEP"
inline constexpr uint32_t kPaddingMagic = 0x20444150u;  // "PAD "

inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kMinRingBytes = 64 * 1024;
inline constexpr uint64_t kDefaultRingBytes = 8 * 1024 * 1024;
inline constexpr uint64_t kMaxRingBytes = 1024 * 1024 * 1024;
inline constexpr uint64_t kRecordAlign = 64;  // padding up to the end of the ring always has room for a header
inline constexpr uint32_t kMaxHeads = 1024;
inline constexpr uint32_t kMaxBlocks = 256;  // of one record
inline constexpr uint64_t kMaxInfoBytes = 256 * 1024;
inline constexpr uint32_t kAckSlots = 16;
inline constexpr uint32_t kMaxReasonBytes = 255;
inline constexpr uint32_t kHostNameBytes = 256;
inline constexpr uint32_t kFlagAct = 1;

inline constexpr uint64_t kLiveOffset = 1024;
inline constexpr uint64_t kControlOffset = kPageBytes;
inline constexpr uint64_t kControlBytes = 2 * kPageBytes;
inline constexpr uint64_t kInfoOffset = kControlOffset + kControlBytes;

// Written once, before the file gets its name.
struct RingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t flags;  // kFlagAct
  uint64_t file_bytes;
  uint64_t control_offset;
  uint64_t info_offset;
  uint64_t data_offset;
  uint64_t data_bytes;
  uint64_t incarnation;  // never 0
  uint64_t pid_start_ticks;
  int64_t created_unix_nanos;
  uint32_t pid;
  uint32_t rank;
  uint32_t world_size;
  uint32_t local_rank;
  uint32_t run_bytes;
  uint32_t host_bytes;
  uint32_t reserved;
  uint32_t crc32c;  // of this struct with crc32c = 0
  char run[TRIMTAB_RUN_NAME_BYTES];
  char host[kHostNameBytes];
};
static_assert(sizeof(RingHeader) == 112 + TRIMTAB_RUN_NAME_BYTES + kHostNameBytes && sizeof(RingHeader) <= kLiveOffset);

enum RingState : uint64_t { kRingOpen = 1, kRingClosed = 2 };

// The words that change, at kLiveOffset. Only the writer stores to them.
struct RingLive {
  std::atomic<uint64_t> head;           // end of the newest committed record
  std::atomic<uint64_t> last_sequence;  // stored just after head; behind by one if the writer died between the two
  uint64_t pad0[6];
  std::atomic<uint64_t> tail;  // start of the oldest record that is still whole
  uint64_t pad1[7];
  std::atomic<uint64_t> state;          // RingState
  std::atomic<uint64_t> refused_steps;  // too large for the ring
  uint64_t pad2[6];
};
static_assert(sizeof(RingLive) == 192 && std::atomic<uint64_t>::is_always_lock_free);
static_assert(kLiveOffset + sizeof(RingLive) <= kControlOffset);

// One record of the byte ring: this header, blocks, zeros up to a multiple of kRecordAlign. Never wraps: the rest of
// the ring before the end is filled by a padding record, of which only magic, bytes and position count.
struct RecordHeader {
  uint32_t magic;
  uint32_t bytes;  // whole record, multiple of kRecordAlign
  uint64_t position;
  uint64_t sequence;  // from 1, without gaps
  uint64_t step;
  int64_t time_unix_nanos;
  uint32_t block_count;
  uint32_t crc32c;  // of the whole record with crc32c = 0
};
static_assert(sizeof(RecordHeader) == 48);

// Followed by the values, row-major, then zeros up to a multiple of 8 bytes.
struct BlockHeader {
  uint32_t metric;
  uint16_t dims;       // 0, 1, 2
  uint16_t is_uint64;  // 0: float32
  uint32_t shape[2];   // 0 for an absent axis
};
static_assert(sizeof(BlockHeader) == 16);

// A command, courier to trainer. version is even; odd while the courier writes. The checksum covers version, so a
// half-written slot is never taken.
struct CommandSlot {
  std::atomic<uint64_t> version;
  uint64_t plan;
  uint64_t effective_step;
  int64_t deadline_unix_nanos;
  uint32_t phase;
  uint32_t mode;
  uint32_t layer_count;
  uint32_t crc32c;  // of this struct with crc32c = 0
  uint8_t layers[TRIMTAB_MAX_LAYERS / 8];
};
static_assert(sizeof(CommandSlot) == 176);

// An answer, trainer to courier, in slot (index - 1) % kAckSlots.
struct AckSlot {
  uint64_t index;  // from 1
  uint64_t plan;
  uint64_t step;
  uint32_t state;
  uint32_t reason_bytes;
  uint32_t crc32c;  // of this struct with crc32c = 0
  uint32_t reserved;
  char reason[kMaxReasonBytes + 1];
  uint8_t pad[24];
};
static_assert(sizeof(AckSlot) == 320);

// At kControlOffset.
struct ControlArea {
  CommandSlot command;
  uint8_t pad0[80];
  std::atomic<uint64_t> taken_version;  // of the last command that the trainer took
  std::atomic<uint64_t> ack_count;      // index of the newest answer
  uint8_t pad1[240];
  AckSlot acks[kAckSlots];
};
static_assert(sizeof(ControlArea) == 512 + kAckSlots * sizeof(AckSlot) && sizeof(ControlArea) <= kControlBytes);

// Info text, in slot version % 2, so that a writer killed inside trimtab_set_info leaves the text before it.
struct InfoSlot {
  uint64_t version;
  uint32_t bytes;
  uint32_t crc32c;  // of version, bytes and the text
  uint8_t pad[48];
  char text[kMaxInfoBytes];
};
// At kInfoOffset.
struct InfoArea {
  std::atomic<uint64_t> version;  // 0: no text yet
  uint8_t pad[56];
  InfoSlot slots[2];
};

inline constexpr uint64_t kDataOffset = (kInfoOffset + sizeof(InfoArea) + kPageBytes - 1) / kPageBytes * kPageBytes;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
// A larger record is refused: the ring always holds at least two, whatever the padding.
constexpr uint64_t MaxRecordBytes(uint64_t data_bytes) { return data_bytes / 4 / kRecordAlign * kRecordAlign; }

// Keeps later stores after earlier ones, also as seen by another process.
inline void StoreBarrier() {
#if defined(__SANITIZE_THREAD__)
  // GCC's thread sanitizer refuses fences; nothing in this process reads what the fence orders.
  asm volatile("" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

// Keeps later loads after earlier ones, also those that the kernel does for us in pread.
inline void LoadBarrier() {
#if defined(__SANITIZE_THREAD__)
  asm volatile("" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_RING_FORMAT_H_
