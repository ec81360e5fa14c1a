#include "agent/core/ring_file_view.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "agent/core/crc32c.h"
#include "agent/core/text_check.h"

namespace trimtab::agent {
namespace {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

RingError Corrupt(std::string* message, const char* text) {
  *message = text;
  return RingError::kCorrupt;
}

}  // namespace

std::unique_ptr<RingFileView> RingFileView::Open(const std::string& path, RingError* error, std::string* message) {
  // O_NONBLOCK: a FIFO with a ring's name must not stop us; no meaning for a regular file.
  const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    *error = errno == ENOENT ? RingError::kNotFound : RingError::kIo;
    *message = errno == ELOOP ? "is a symbolic link" : ErrnoText(errno);
    return nullptr;
  }
  std::unique_ptr<RingFileView> view(new RingFileView(fd, path));
  *error = view->CheckFile(message);
  if (*error == RingError::kOk) *error = view->LoadHeader(message);
  if (*error != RingError::kOk) return nullptr;
  return view;
}

RingFileView::~RingFileView() { close(fd_); }

RingError RingFileView::CheckFile(std::string* message) const {
  struct stat info;
  if (fstat(fd_, &info) != 0) {
    *message = ErrnoText(errno);
    return RingError::kIo;
  }
  if (!S_ISREG(info.st_mode)) return Corrupt(message, "is not a regular file");
  if (info.st_uid != geteuid()) return Corrupt(message, "belongs to another user");
  if ((info.st_mode & 077) != 0) return Corrupt(message, "is open to other users");
  return RingError::kOk;
}

RingError RingFileView::LoadHeader(std::string* message) {
  RingHeader header;
  if (!Read(0, &header, sizeof(header), message)) return RingError::kCorrupt;
  if (header.magic == 0) {
    *message = "header is not written yet";
    return RingError::kNotReady;
  }
  if (header.magic != kRingMagic) return Corrupt(message, "magic: not a ring file");
  if (header.version != kRingVersion) {
    *message = "version " + std::to_string(header.version) + ", this reader knows " + std::to_string(kRingVersion);
    return RingError::kBadVersion;
  }
  const uint32_t crc = header.crc32c;
  header.crc32c = 0;
  if (Crc32c(0, &header, sizeof(header)) != crc) return Corrupt(message, "crc32c: header checksum is wrong");
  if (header.data_bytes < kMinRingBytes || header.data_bytes > kMaxRingBytes || header.data_bytes % kPageBytes != 0) {
    return Corrupt(message, "data_bytes is out of range");
  }
  if (header.control_offset != kControlOffset || header.info_offset != kInfoOffset ||
      header.data_offset != kDataOffset || header.file_bytes != kDataOffset + header.data_bytes) {
    return Corrupt(message, "layout: offsets are not those of version 1");
  }
  struct stat info;
  if (fstat(fd_, &info) != 0 || static_cast<uint64_t>(info.st_size) < header.file_bytes) {
    return Corrupt(message, "file_bytes: the file is shorter than its header says");
  }
  if (header.incarnation == 0) return Corrupt(message, "incarnation is 0");
  if (header.world_size == 0 || header.rank >= header.world_size || header.local_rank >= header.world_size) {
    return Corrupt(message, "rank is not below world_size");
  }
  if (header.run_bytes == 0 || header.run_bytes >= sizeof(header.run) ||
      !IsPrintableUtf8(header.run, header.run_bytes)) {
    return Corrupt(message, "run is not printable UTF-8 of 1 to 255 bytes");
  }
  if (header.host_bytes == 0 || header.host_bytes >= sizeof(header.host) ||
      !IsPrintableUtf8(header.host, header.host_bytes)) {
    return Corrupt(message, "host is not printable UTF-8 of 1 to 255 bytes");
  }
  data_bytes_ = header.data_bytes;
  identity_.run.assign(header.run, header.run_bytes);
  identity_.host.assign(header.host, header.host_bytes);
  identity_.rank = header.rank;
  identity_.world_size = header.world_size;
  identity_.local_rank = header.local_rank;
  identity_.pid = header.pid;
  identity_.pid_start_ticks = header.pid_start_ticks;
  identity_.incarnation = header.incarnation;
  identity_.act = (header.flags & kFlagAct) != 0;
  return RingError::kOk;
}

bool RingFileView::Read(uint64_t offset, void* to, size_t bytes, std::string* message) const {
  auto* target = static_cast<uint8_t*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, target, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      *message = "cannot be read: " + ErrnoText(errno);
      return false;
    }
    if (got == 0) {
      *message = "file ends at byte " + std::to_string(offset) + ": truncated";
      return false;
    }
    target += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool RingFileView::ReadWord(uint64_t offset, uint64_t* word, std::string* message) const {
  return Read(offset, word, sizeof(*word), message);
}

bool RingFileView::Write(uint64_t offset, const void* from, size_t bytes, std::string* message) const {
  const ssize_t put = pwrite(fd_, from, bytes, static_cast<off_t>(offset));
  if (put == static_cast<ssize_t>(bytes)) return true;
  *message = "cannot be written: " + (put < 0 ? ErrnoText(errno) : std::string("short write"));
  return false;
}

}  // namespace trimtab::agent
