#include "agent/courier/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"

namespace trimtab::courier {

absl::StatusOr<std::optional<FileLock>> FileLock::Try(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open " + path);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return std::optional<FileLock>(FileLock(fd));
  const int error = errno;
  close(fd);
  if (error == EWOULDBLOCK) return std::optional<FileLock>();
  return absl::ErrnoToStatus(error, "cannot lock " + path);
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace trimtab::courier
