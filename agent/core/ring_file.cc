#include "agent/core/ring_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>

#include "agent/core/crc32c.h"
#include "agent/core/last_error.h"
#include "agent/core/process_id.h"
#include "agent/core/text_check.h"

namespace trimtab::agent {
namespace {

constexpr int kMaxInterrupts = 64;  // signals that may cut one allocation short

// Text of errno without strerror's shared buffer.
struct ErrnoText {
  char buffer[128] = "";
  const char* text;
  explicit ErrnoText(int error) : text(strerror_r(error, buffer, sizeof(buffer))) {}
};

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int64_t NowNanos() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

uint64_t RandomIncarnation() {
  uint64_t value = 0;
  while (value == 0) {
    if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != static_cast<ssize_t>(sizeof(value))) {
      // Early boot or an old kernel: unlike any other life of this machine is enough.
      value = static_cast<uint64_t>(NowNanos()) * 0x9E3779B97F4A7C15u ^ static_cast<uint64_t>(getpid()) << 32;
    }
  }
  return value;
}

// Opens the directory after making it if need be. -1 with last_error.
int OpenDirectory(const char* dir) {
  if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
    Fail(TRIMTAB_IO,
         "ring directory %.200s cannot be made: %s; set TRIMTAB_RING_DIR to a folder on a local disk or tmpfs", dir,
         ErrnoText(errno).text);
    return -1;
  }
  const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0) {
    Fail(TRIMTAB_IO, "ring directory %.200s cannot be opened: %s", dir, ErrnoText(errno).text);
    if (fd >= 0) close(fd);
    return -1;
  }
  if (info.st_uid != geteuid()) {
    Fail(TRIMTAB_IO, "ring directory %.200s belongs to user %u, not to %u; set TRIMTAB_RING_DIR to your own", dir,
         info.st_uid, geteuid());
  } else if ((info.st_mode & 077) != 0) {
    Fail(TRIMTAB_IO, "ring directory %.200s is open to other users (mode %03o): chmod 700 it", dir,
         info.st_mode & 0777);
  } else {
    return fd;
  }
  close(fd);
  return -1;
}

// Allocates every page of the file. Over the process's file size limit the kernel would also send SIGXFSZ, which kills.
bool Allocate(int fd, uint64_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
    Fail(TRIMTAB_IO, "ring of %" PRIu64 " bytes is over the process's file size limit of %" PRIu64 " (ulimit -f)",
         bytes, static_cast<uint64_t>(limit.rlim_cur));
    return false;
  }
  int error = EINTR;
  for (int attempt = 0; attempt < kMaxInterrupts && error == EINTR; ++attempt) {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  }
  if (error == 0) return true;
  Fail(TRIMTAB_IO,
       "ring of %" PRIu64 " bytes cannot be allocated: %s; free space, lower ring_bytes or set TRIMTAB_RING_DIR", bytes,
       ErrnoText(error).text);
  return false;
}

void FillHeader(const RingFileOptions& options, uint64_t incarnation, uint64_t file_bytes, uint8_t* base) {
  auto* header = new (base) RingHeader();
  header->magic = kRingMagic;
  header->version = kRingVersion;
  header->flags = options.act ? kFlagAct : 0;
  header->file_bytes = file_bytes;
  header->control_offset = kControlOffset;
  header->info_offset = kInfoOffset;
  header->data_offset = kDataOffset;
  header->data_bytes = options.data_bytes;
  header->incarnation = incarnation;
  ProcessStat stat;
  header->pid = static_cast<uint32_t>(getpid());
  header->pid_start_ticks = ReadProcessStat(header->pid, &stat) ? stat.start_ticks : 0;
  header->created_unix_nanos = NowNanos();
  header->rank = options.rank;
  header->world_size = options.world_size;
  header->local_rank = options.local_rank;
  header->run_bytes = static_cast<uint32_t>(std::strlen(options.run));
  std::memcpy(header->run, options.run, header->run_bytes);
  if (gethostname(header->host, sizeof(header->host) - 1) != 0) std::strcpy(header->host, "unknown");
  header->host_bytes = static_cast<uint32_t>(std::strlen(header->host));
  if (header->host_bytes == 0 || !IsPrintableUtf8(header->host, header->host_bytes)) {
    std::memset(header->host, 0, sizeof(header->host));
    std::strcpy(header->host, "unknown");
    header->host_bytes = static_cast<uint32_t>(std::strlen(header->host));
  }
  header->crc32c = Crc32c(0, header, sizeof(*header));
  auto* live = new (base + kLiveOffset) RingLive();
  live->state.store(kRingOpen, std::memory_order_release);
}

}  // namespace

RingMapping::~RingMapping() {
  if (base_ != nullptr) munmap(base_, file_bytes_);
}

trimtab_status RingMapping::Create(const RingFileOptions& options) {
  const uint64_t incarnation = RandomIncarnation();
  char name[64];
  char temporary[72];
  std::snprintf(name, sizeof(name), "%016" PRIx64 "-%u.ring", incarnation, options.rank);
  std::snprintf(temporary, sizeof(temporary), ".%s.new", name);
  if (std::snprintf(path_, sizeof(path_), "%s/%s", options.ring_dir, name) >= static_cast<int>(sizeof(path_))) {
    return Fail(TRIMTAB_IO, "path of the ring directory is too long (%zu bytes)", std::strlen(options.ring_dir));
  }
  const Fd dir(OpenDirectory(options.ring_dir));
  if (dir.get() < 0) return TRIMTAB_IO;
  const Fd file(openat(dir.get(), temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    return Fail(TRIMTAB_IO, "ring file cannot be made in %.200s: %s", options.ring_dir, ErrnoText(errno).text);
  }
  const uint64_t file_bytes = kDataOffset + options.data_bytes;
  trimtab_status status = TRIMTAB_IO;
  if (Allocate(file.get(), file_bytes)) {
    void* base = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (base == MAP_FAILED) {
      Fail(TRIMTAB_IO, "ring file cannot be mapped: %s", ErrnoText(errno).text);
    } else {
      base_ = static_cast<uint8_t*>(base);
      file_bytes_ = file_bytes;
      data_bytes_ = options.data_bytes;
      FillHeader(options, incarnation, file_bytes, base_);
      if (renameat(dir.get(), temporary, dir.get(), name) == 0) {
        status = TRIMTAB_OK;
      } else {
        Fail(TRIMTAB_IO, "ring file cannot be named in %.200s: %s", options.ring_dir, ErrnoText(errno).text);
      }
    }
  }
  if (status != TRIMTAB_OK) unlinkat(dir.get(), temporary, 0);
  return status;
}

}  // namespace trimtab::agent
