#include "server/store/data_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace trimtab::server {
namespace {

namespace fs = std::filesystem;
constexpr absl::string_view kMagic = "trimtab-store ";

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error), "; give a writable folder with --data-dir");
  if (error == EACCES || error == EROFS) return absl::PermissionDeniedError(message);
  if (error == ENOSPC) return absl::ResourceExhaustedError(message);
  return absl::FailedPreconditionError(message);
}

// Writes a new file whole or not at all, and makes its name durable.
absl::Status WriteNewFile(const fs::path& path, absl::string_view text) {
  const std::string temporary = path.string() + ".new";
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return Errno("write", temporary);
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(file) == 0;
  const absl::Status failure = written ? absl::OkStatus() : Errno("write", temporary);
  close(file);
  if (!failure.ok()) return failure;
  if (rename(temporary.c_str(), path.c_str()) != 0) return Errno("rename", temporary);
  const int folder = open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Errno("open", path.parent_path());
  const bool synced = fsync(folder) == 0;
  close(folder);
  return synced ? absl::OkStatus() : Errno("sync", path.parent_path());
}

}  // namespace

absl::Status PrepareDataFolder(const std::string& path, uint32_t format_version) {
  std::error_code error;
  const bool existed = fs::exists(path, error);
  if (existed && !fs::is_directory(path, error)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder; give a folder with --data-dir"));
  }
  if (!existed) {
    fs::create_directories(path, error);
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat("cannot make ", path, ": ", error.message(), "; give a writable folder with --data-dir"));
    }
    fs::permissions(path, fs::perms::owner_all, error);
  }
  const fs::path format = fs::path(path) / "FORMAT";
  if (!fs::exists(format, error)) {
    if (fs::exists(fs::path(path) / "rocksdb", error)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " holds a database but no FORMAT file; restore the file or use another --data-dir"));
    }
    return WriteNewFile(format, absl::StrCat(kMagic, format_version, "\n"));
  }
  std::string line;
  std::ifstream file(format);
  if (!std::getline(file, line)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot read ", format.string(), ": empty, or no file; restore it or use another --data-dir"));
  }
  absl::string_view rest = line;
  uint32_t found = 0;
  if (!absl::ConsumePrefix(&rest, kMagic) || !absl::SimpleAtoi(rest, &found) || found == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(format.string(), " is not a trimtab format record; use another --data-dir"));
  }
  if (found > format_version) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has store format ", found, ", this trimtabd reads up to ",
                                                      format_version,
                                                      "; start the newer trimtabd that wrote it, or "
                                                      "use another --data-dir"));
  }
  return absl::OkStatus();
}

std::string LockHolder(const std::string& lock_file) {
  const std::string unknown = "another process";
  const int file = open(lock_file.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return unknown;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool asked = fcntl(file, F_GETLK, &lock) == 0;
  close(file);
  if (!asked || lock.l_type == F_UNLCK || lock.l_pid <= 0) return unknown;
  std::string name;
  std::ifstream comm(absl::StrCat("/proc/", lock.l_pid, "/comm"));
  std::getline(comm, name);
  if (name.empty()) return absl::StrCat("process ", lock.l_pid);
  return absl::StrCat("process ", lock.l_pid, " (", name, ")");
}

}  // namespace trimtab::server
