// One file of the spool: a header, then records with their own checksum. Format: docs/wire.md.
//
// Made for appending and for reading back once, in order. A record cut off at the end of the file (the courier or the
// machine died while it was written) ends the file; damage in the middle costs the records it touches, not those
// behind.
#ifndef TRIMTAB_AGENT_COURIER_SPOOL_SEGMENT_H_
#define TRIMTAB_AGENT_COURIER_SPOOL_SEGMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trimtab::courier {

inline constexpr uint64_t kSegmentHeaderBytes = 16;
inline constexpr uint64_t kRecordHeaderBytes = 24;

class SegmentWriter {
 public:
  // Creates the file; ALREADY_EXISTS when there is one.
  static absl::StatusOr<SegmentWriter> Create(const std::string& path);
  SegmentWriter(SegmentWriter&& other) noexcept;
  SegmentWriter& operator=(SegmentWriter&& other) noexcept;
  ~SegmentWriter();

  // Writes one record with one write(). On error the file is cut back to what it was; RESOURCE_EXHAUSTED when the disk
  // or the quota is full.
  absl::Status Append(uint64_t sequence, absl::string_view payload);
  // fdatasync.
  absl::Status Sync();
  uint64_t bytes() const { return bytes_; }

 private:
  SegmentWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  absl::Status Write(const std::string& data);

  int fd_ = -1;
  std::string path_;
  std::string scratch_;
  uint64_t bytes_ = 0;
};

class SegmentReader {
 public:
  // INVALID_ARGUMENT when the file is not a segment of a known version.
  static absl::StatusOr<SegmentReader> Open(const std::string& path);
  SegmentReader(SegmentReader&& other) noexcept;
  SegmentReader& operator=(SegmentReader&& other) noexcept;
  ~SegmentReader();

  enum class Result { kRecord, kEnd };

  // The next whole record. Damaged bytes are skipped up to the next record whose checksum holds; damage() counts how
  // often. With payload == nullptr only the header is looked at, without the checksum. kEnd at the end of the file, or
  // at a record that is not complete; more may be there later when the file is still written to.
  Result Next(uint64_t* sequence, std::string* payload);
  uint64_t damage() const { return damage_; }

 private:
  explicit SegmentReader(int fd) : fd_(fd) {}
  bool ReadAt(uint64_t offset, size_t bytes, char* out) const;
  bool Resync(uint64_t file_bytes);

  int fd_ = -1;
  uint64_t offset_ = kSegmentHeaderBytes;
  uint64_t damage_ = 0;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_SPOOL_SEGMENT_H_
