// Turns bytes into a story that happens to one ring: a writer at work, a reader at work, and somebody who writes into
// the file, forges checksums and truncates it between their calls. Aborts when the reader breaks a promise.
#ifndef TRIMTAB_TESTS_FUZZ_RING_HARNESS_H_
#define TRIMTAB_TESTS_FUZZ_RING_HARNESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/core/ring_reader.h"
#include "agent/core/ring_writer.h"
#include "agent/core/step_record.h"

namespace trimtab::agent {

// One operation is an opcode byte (modulo kOpCount) and its operands, little-endian; missing bytes read as 0.
enum HarnessOp : uint8_t {
  kPatchHeader,   // u16 offset, u8 n, n bytes
  kSetLiveWord,   // u8 word, u64 value
  kPatchControl,  // u16 offset, u8 n, n bytes
  kPatchInfo,     // u8 slot and offset, u8 n, n bytes
  kPatchData,     // u16 offset, u8 n, n bytes
  kForgeRecord,   // u16 offset: makes the checksum of the record there right
  kForgeHeader,   // makes the header's checksum right
  kTruncate,      // u32 size; the writer rests from here on
  kRead,          // u8 n: opens the reader if need be and calls Next n times
  kCommit,        // u8 n, u8 layers: the writer commits n steps and polls for a command
  kCommand,       // u8 phase, u8 mode, u16 layers: the reader writes a command
  kSeek,          // u64 sequence
  kOpCount,
};

class RingHarness {
 public:
  RingHarness();
  ~RingHarness();
  RingHarness(const RingHarness&) = delete;
  RingHarness& operator=(const RingHarness&) = delete;

  // Plays one story from a fresh ring. The same bytes do the same.
  void Run(const uint8_t* data, size_t size);

 private:
  struct Input;
  void Reset();
  void Play(Input* input);
  void Patch(Input* input, uint64_t area, uint64_t area_bytes, uint64_t offset);
  void ForgeRecord(uint64_t offset);
  void ForgeHeader();
  void CommitSteps(uint64_t count, uint32_t layers);
  bool OpenReader();
  void ReadSome(uint64_t calls);
  void ReadAllElse();

  std::string dir_, path_;
  uint8_t* base_ = nullptr;  // mapping of the whole file
  uint64_t file_bytes_ = 0;
  std::unique_ptr<uint8_t[]> fresh_header_;
  RingWriter writer_;
  StepRecord record_;
  uint64_t step_ = 0;
  bool truncated_ = false;
  std::unique_ptr<RingReader> reader_;
  RingStep read_step_;
  uint64_t last_sequence_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_TESTS_FUZZ_RING_HARNESS_H_
