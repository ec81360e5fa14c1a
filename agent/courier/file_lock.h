// An advisory lock on a file, held until destruction or the end of the process (also by SIGKILL).
#ifndef TRIMTAB_AGENT_COURIER_FILE_LOCK_H_
#define TRIMTAB_AGENT_COURIER_FILE_LOCK_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace trimtab::courier {

class FileLock {
 public:
  // Creates `path` (mode 0600) if it is missing and tries to lock it, without waiting. Nothing inside the optional when
  // another process, or another FileLock of this one, holds it; an error when the file cannot be opened.
  static absl::StatusOr<std::optional<FileLock>> Try(const std::string& path);

  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_FILE_LOCK_H_
