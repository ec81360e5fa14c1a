#include "agent/courier/spool_segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "agent/core/crc32c.h"
#include "agent/courier/limits.h"
#include "proto/status/status.h"

namespace trimtab::courier {
namespace {

constexpr char kSegmentMagic[8] = {'T', 'T', 'S', 'P', 'O', 'O', 'L', '\0'};
constexpr uint32_t kSegmentVersion = 1;
constexpr uint32_t kSegmentRecordMagic = 0x43455254u;  // "TREC"

struct SegmentHeader {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
};
static_assert(sizeof(SegmentHeader) == kSegmentHeaderBytes);

struct SegmentRecord {
  uint32_t magic;
  uint32_t bytes;  // of the payload
  uint64_t sequence;
  uint32_t crc32c;  // of this struct with crc32c = 0, then the payload
  uint32_t reserved;
};
static_assert(sizeof(SegmentRecord) == kRecordHeaderBytes);

uint32_t Checksum(SegmentRecord header, absl::string_view payload) {
  header.crc32c = 0;
  return agent::Crc32c(agent::Crc32c(0, &header, sizeof(header)), payload.data(), payload.size());
}

bool Plausible(const SegmentRecord& header) {
  return header.magic == kSegmentRecordMagic && header.bytes <= kMaxStepBytes && header.reserved == 0;
}

}  // namespace

absl::StatusOr<SegmentWriter> SegmentWriter::Create(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot create " + path);
  SegmentWriter writer(fd, path);
  SegmentHeader header = {};
  std::memcpy(header.magic, kSegmentMagic, sizeof(header.magic));
  header.version = kSegmentVersion;
  if (absl::Status status = writer.Write(std::string(reinterpret_cast<const char*>(&header), sizeof(header)));
      !status.ok()) {
    unlink(path.c_str());
    return status;
  }
  return writer;
}

SegmentWriter::SegmentWriter(SegmentWriter&& other) noexcept { *this = std::move(other); }

SegmentWriter& SegmentWriter::operator=(SegmentWriter&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(scratch_, other.scratch_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SegmentWriter::~SegmentWriter() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SegmentWriter::Append(uint64_t sequence, absl::string_view payload) {
  SegmentRecord header = {};
  header.magic = kSegmentRecordMagic;
  header.bytes = static_cast<uint32_t>(payload.size());
  header.sequence = sequence;
  header.crc32c = Checksum(header, payload);
  scratch_.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  scratch_.append(payload.data(), payload.size());
  return Write(scratch_);
}

absl::Status SegmentWriter::Write(const std::string& data) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t wrote = pwrite(fd_, data.data() + done, data.size() - done, static_cast<off_t>(bytes_ + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote == 0 ? ENOSPC : errno;
      // What is cut off here would be taken for a damaged tail anyway.
      if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) errno = error;
      return absl::ErrnoToStatus(error, "cannot write " + path_);
    }
    done += static_cast<size_t>(wrote);
  }
  bytes_ += data.size();
  return absl::OkStatus();
}

absl::Status SegmentWriter::Sync() {
  if (fdatasync(fd_) != 0) return absl::ErrnoToStatus(errno, "cannot sync " + path_);
  return absl::OkStatus();
}

absl::StatusOr<SegmentReader> SegmentReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open " + path);
  SegmentReader reader(fd);
  SegmentHeader header;
  if (!reader.ReadAt(0, sizeof(header), reinterpret_cast<char*>(&header)) ||
      std::memcmp(header.magic, kSegmentMagic, sizeof(header.magic)) != 0 || header.version != kSegmentVersion) {
    return absl::InvalidArgumentError(path + " is not a spool segment of version 1");
  }
  return reader;
}

SegmentReader::SegmentReader(SegmentReader&& other) noexcept { *this = std::move(other); }

SegmentReader& SegmentReader::operator=(SegmentReader&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(offset_, other.offset_);
  std::swap(damage_, other.damage_);
  return *this;
}

SegmentReader::~SegmentReader() {
  if (fd_ >= 0) close(fd_);
}

bool SegmentReader::ReadAt(uint64_t offset, size_t bytes, char* out) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd_, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

SegmentReader::Result SegmentReader::Next(uint64_t* sequence, std::string* payload) {
  struct stat info;
  if (fstat(fd_, &info) != 0) return Result::kEnd;
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  // Ends: each turn returns or moves offset_ on.
  while (offset_ + kRecordHeaderBytes <= file_bytes) {
    SegmentRecord header;
    if (!ReadAt(offset_, sizeof(header), reinterpret_cast<char*>(&header))) return Result::kEnd;
    if (Plausible(header)) {
      if (offset_ + kRecordHeaderBytes + header.bytes > file_bytes) {
        // Cut off, or a damaged length: whole records behind it decide.
        const uint64_t here = offset_;
        const uint64_t damage = damage_;
        if (Resync(file_bytes)) continue;
        offset_ = here;
        damage_ = damage;
        return Result::kEnd;
      }
      if (payload == nullptr) {
        *sequence = header.sequence;
        offset_ += kRecordHeaderBytes + header.bytes;
        return Result::kRecord;
      }
      payload->resize(header.bytes);
      if (!ReadAt(offset_ + kRecordHeaderBytes, header.bytes, payload->data())) return Result::kEnd;
      if (Checksum(header, *payload) == header.crc32c) {
        *sequence = header.sequence;
        offset_ += kRecordHeaderBytes + header.bytes;
        return Result::kRecord;
      }
    }
    if (!Resync(file_bytes)) return Result::kEnd;
  }
  return Result::kEnd;
}

// Moves offset_ past the damaged record at it to the next whole one; false, at the end of the file, if there is none.
bool SegmentReader::Resync(uint64_t file_bytes) {
  ++damage_;
  std::string block;
  std::string payload;
  uint64_t from = offset_ + 1;
  while (from + kRecordHeaderBytes <= file_bytes) {
    block.resize(std::min<uint64_t>(64 << 10, file_bytes - from));
    if (!ReadAt(from, block.size(), block.data())) break;
    const absl::string_view magic(reinterpret_cast<const char*>(&kSegmentRecordMagic), sizeof(kSegmentRecordMagic));
    for (size_t at = block.find(magic.data(), 0, magic.size()); at != std::string::npos;
         at = block.find(magic.data(), at + 1, magic.size())) {
      SegmentRecord header;
      const uint64_t offset = from + at;
      if (offset + kRecordHeaderBytes > file_bytes) break;
      if (!ReadAt(offset, sizeof(header), reinterpret_cast<char*>(&header)) || !Plausible(header)) continue;
      if (offset + kRecordHeaderBytes + header.bytes > file_bytes) continue;
      payload.resize(header.bytes);
      if (!ReadAt(offset + kRecordHeaderBytes, header.bytes, payload.data())) continue;
      if (Checksum(header, payload) != header.crc32c) continue;
      offset_ = offset;
      return true;
    }
    // A magic may lie across the border of two blocks.
    from += block.size() > magic.size() ? block.size() - magic.size() + 1 : block.size();
    if (block.size() < (64 << 10)) break;
  }
  offset_ = file_bytes;
  return false;
}

}  // namespace trimtab::courier
