#include "agent/courier/ring_watcher.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace trimtab::courier {

bool StatRing(const std::string& path, RingFile* file) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  file->path = path;
  file->device = info.st_dev;
  file->inode = info.st_ino;
  file->bytes = static_cast<uint64_t>(info.st_size);
  return true;
}

std::vector<RingFile> RingWatcher::Scan() const {
  std::vector<RingFile> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(folder_.c_str()), closedir);
  if (folder == nullptr) return found;
  while (const dirent* entry = readdir(folder.get())) {
    const absl::string_view name = entry->d_name;
    if (!absl::EndsWith(name, ".ring") || absl::StartsWith(name, ".")) continue;
    RingFile file;
    if (StatRing(absl::StrCat(folder_, "/", name), &file) && known_.count(file) == 0) found.push_back(std::move(file));
  }
  std::sort(found.begin(), found.end());
  return found;
}

void RingWatcher::Prune() {
  for (auto it = known_.begin(); it != known_.end();) {
    RingFile now;
    const bool same = StatRing(it->path, &now) && now.device == it->device && now.inode == it->inode;
    it = same ? std::next(it) : known_.erase(it);
  }
}

void RemoveRing(const RingFile& file) {
  RingFile now;
  if (StatRing(file.path, &now) && now.device == file.device && now.inode == file.inode) unlink(file.path.c_str());
}

bool SetAsideRing(const RingFile& file) {
  RingFile now;
  if (!StatRing(file.path, &now) || now.device != file.device || now.inode != file.inode) return false;
  return rename(file.path.c_str(), absl::StrCat(file.path, ".corrupt").c_str()) == 0;
}

}  // namespace trimtab::courier
