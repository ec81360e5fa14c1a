#include "agent/courier/spool_meta.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "agent/core/crc32c.h"
#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

constexpr char kMetaMagic[8] = {'T', 'T', 'S', 'M', 'E', 'T', 'A', '\0'};
constexpr uint32_t kMetaVersion = 1;
constexpr size_t kMaxMetaBytes = 4 << 20;

struct MetaHeader {
  char magic[8];
  uint32_t version;
  uint32_t crc32c;  // of the payload
};
static_assert(sizeof(MetaHeader) == 16);

bool WriteAll(int fd, const std::string& data) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t wrote = write(fd, data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    done += static_cast<size_t>(wrote);
  }
  return true;
}

}  // namespace

absl::Status WriteSpoolMeta(const std::string& path, const SpoolMeta& meta, bool sync) {
  const std::string payload = meta.SerializeAsString();
  MetaHeader header = {};
  std::memcpy(header.magic, kMetaMagic, sizeof(header.magic));
  header.version = kMetaVersion;
  header.crc32c = agent::Crc32c(0, payload.data(), payload.size());
  const std::string data = std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + payload;
  const std::string fresh = path + ".new";
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot create " + fresh);
  const bool written = WriteAll(fd, data) && (!sync || fdatasync(fd) == 0);
  const int error = errno;
  close(fd);
  if (!written || rename(fresh.c_str(), path.c_str()) != 0) {
    const int why = written ? errno : error;
    unlink(fresh.c_str());
    return absl::ErrnoToStatus(why, "cannot write " + path);
  }
  return absl::OkStatus();
}

absl::StatusOr<SpoolMeta> ReadSpoolMeta(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open " + path);
  std::string data(kMaxMetaBytes + 1, '\0');
  size_t size = 0;
  while (size < data.size()) {
    const ssize_t got = read(fd, data.data() + size, data.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  close(fd);
  data.resize(size);
  MetaHeader header;
  SpoolMeta meta;
  if (size > kMaxMetaBytes || size < sizeof(header)) return absl::DataLossError(path + " is cut off or too large");
  std::memcpy(&header, data.data(), sizeof(header));
  if (std::memcmp(header.magic, kMetaMagic, sizeof(header.magic)) != 0 || header.version != kMetaVersion) {
    return absl::DataLossError(path + " is not a spool meta file of version 1");
  }
  if (agent::Crc32c(0, data.data() + sizeof(header), size - sizeof(header)) != header.crc32c ||
      !meta.ParseFromArray(data.data() + sizeof(header), static_cast<int>(size - sizeof(header)))) {
    return absl::DataLossError(path + " is damaged");
  }
  return meta;
}

}  // namespace trimtab::courier
