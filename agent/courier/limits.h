// Every bound of the courier in one place. What each one refuses is counted or logged where it is applied; docs/wire.md
// lists them for operators.
#ifndef TRIMTAB_AGENT_COURIER_LIMITS_H_
#define TRIMTAB_AGENT_COURIER_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace trimtab::courier {

inline constexpr uint32_t kProtocolVersion = 1;

// Rings and spooled channels served at a time; further ring files are left alone and logged once.
inline constexpr size_t kMaxChannels = 1024;

// One StepBatch: as many steps as fit both bounds, at least one.
inline constexpr size_t kMaxBatchBytes = 1 << 20;
inline constexpr size_t kMaxBatchSteps = 512;
// A step that is larger once encoded is dropped and counted: it could not pass gRPC's default message limit.
inline constexpr size_t kMaxStepBytes = 3 << 20;

// Sent but not yet acknowledged, per channel.
inline constexpr size_t kMaxInFlightBatches = 8;
inline constexpr size_t kMaxInFlightBytes = 4 << 20;

// Unacknowledged steps kept in memory. Above it they go to the spool or stay in the ring.
inline constexpr size_t kMemoryBytesPerChannel = 8 << 20;
inline constexpr size_t kMemoryBytesTotal = 128 << 20;

// Bytes waiting inside one stream for the transport to take them; batches wait in their queue above it.
inline constexpr size_t kMaxOutboxBytes = 4 << 20;
// Server messages received but not yet handled; above it the stream stops reading.
inline constexpr size_t kMaxInbox = 4096;

// Steps taken from one ring in one turn of the loop, so that one full ring does not starve the others.
inline constexpr int kMaxReadsPerTurn = 4096;
// Batches sent for one channel in one turn.
inline constexpr int kMaxBatchesPerTurn = 8;

// RankInfo JSON text, and the message it turns into.
inline constexpr size_t kMaxInfoBytes = 256 * 1024;
inline constexpr int kMaxInfoEntries = 1024;  // of each list or map

// Commands of one channel waiting for the rank to take the one before.
inline constexpr size_t kMaxCommandsWaiting = 16;

// Spool segments roll at this size, or at an eighth of a smaller bound.
inline constexpr uint64_t kMaxSegmentBytes = 4 << 20;
inline constexpr uint64_t kMinSegmentBytes = 4 << 10;
inline constexpr uint64_t kMinSpoolBytes = 64 << 10;
// Ranges of dropped steps whose fate only the next Welcome tells.
inline constexpr size_t kMaxUncertainRanges = 1024;

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_LIMITS_H_
