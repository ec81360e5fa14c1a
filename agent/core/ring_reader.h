// Reads one step ring that another process writes, and carries commands into it. Format: docs/ring.md.
//
// Depends on nothing but the C++ library, so errors are an enum with text and not absl::Status.
// The file is hostile. The reader never maps it: it copies with pread and checks the copy, so a file that is truncated
// or rewritten under it is reported as kCorrupt and cannot raise SIGBUS or change between check and use.
// Threads: one thread at a time per reader. No call blocks but on the disk or tmpfs that holds the file.
#ifndef TRIMTAB_AGENT_CORE_RING_READER_H_
#define TRIMTAB_AGENT_CORE_RING_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trimtab/agent.h"

namespace trimtab::agent {

struct RingIdentity {
  std::string run;
  std::string host;
  uint32_t rank = 0, world_size = 0, local_rank = 0;
  uint32_t pid = 0;
  uint64_t pid_start_ticks = 0;  // field 22 of /proc/<pid>/stat, tells a reused pid apart
  uint64_t incarnation = 0;
  bool act = false;
};

struct RingBlock {
  uint32_t metric = 0;
  uint32_t dims = 0;  // 0, 1, 2
  uint32_t shape[2] = {0, 0};
  bool is_uint64 = false;
  const void* data = nullptr;  // into the RingStep's buffer; 8-byte aligned
  uint64_t count = 0;
};

struct RingStep {
  uint64_t sequence = 0;
  uint64_t step = 0;
  int64_t time_unix_nanos = 0;
  std::vector<RingBlock> blocks;
  std::vector<uint8_t> buffer;  // owns what blocks point into; reused between reads
};

struct RingAck {
  uint64_t index = 0;  // 1, 2, … in the order of trimtab_ack
  uint64_t plan = 0;
  trimtab_ack_state state = TRIMTAB_ACK_PREPARED;
  uint64_t step = 0;
  std::string reason;
};

enum class RingError {
  kOk,
  kNotFound,
  kNotReady,  // the writer has not finished making it
  kBadVersion,
  kCorrupt,  // names the field in error()
  kIo,
};

enum class ReadResult {
  kStep,     // *step holds the next record
  kEmpty,    // nothing new
  kSkipped,  // records were overwritten or failed their checksum before they were read; the position moved on
  kCorrupt,  // the file contradicts itself; close it
};

class RingReader {
 public:
  // Opens `path` (O_RDWR | O_NOFOLLOW; must be a regular file of this user, closed to others). nullptr on error.
  static std::unique_ptr<RingReader> Open(const std::string& path, RingError* error, std::string* message);
  virtual ~RingReader() = default;

  virtual const RingIdentity& identity() const = 0;
  virtual const std::string& path() const = 0;

  // Positions the reader so that the next record returned has the smallest sequence > `sequence` still held.
  virtual void SeekAfter(uint64_t sequence) = 0;
  virtual ReadResult Next(RingStep* step) = 0;
  // Steps that were overwritten before this reader saw them, or whose checksum failed. Known from the gap in sequences,
  // so a gap is counted when the first whole record after it is found.
  virtual uint64_t dropped_steps() const = 0;

  // Steps that the writer refused as too large for its ring.
  virtual uint64_t refused_steps() const = 0;

  // Newest committed record. Behind by one when the writer was killed inside a commit: kEmpty from Next, not this
  // number, tells that everything was read.
  virtual uint64_t last_sequence() const = 0;
  virtual bool closed() const = 0;        // the writer called trimtab_close
  virtual bool writer_alive() const = 0;  // pid exists with the same start time

  // Info text; returns false when unchanged since the last call that returned true.
  virtual bool ReadInfo(std::string* json) = 0;

  // Publishes a command. The slot holds one command at a time: a later one replaces one not yet taken.
  virtual void WriteCommand(const trimtab_command& command) = 0;
  // The trainer took the last command written; true when there was none.
  virtual bool command_taken() const = 0;
  // Answers with index > after, ascending.
  virtual std::vector<RingAck> ReadAcks(uint64_t after) = 0;

  virtual const std::string& error() const = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_RING_READER_H_
