// Finds ring files in the ring folder.
#ifndef TRIMTAB_AGENT_COURIER_RING_WATCHER_H_
#define TRIMTAB_AGENT_COURIER_RING_WATCHER_H_

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trimtab::courier {

// A file by name and inode: a new file under an old name is another ring.
struct RingFile {
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;
  uint64_t bytes = 0;
  friend bool operator<(const RingFile& a, const RingFile& b) {
    return std::tie(a.path, a.device, a.inode) < std::tie(b.path, b.device, b.inode);
  }
};

class RingWatcher {
 public:
  explicit RingWatcher(std::string folder) : folder_(std::move(folder)) {}

  // Regular files named *.ring that are not in the set of known ones, by name. An unreadable or missing folder has
  // none; it may appear later.
  std::vector<RingFile> Scan() const;

  // Known files are not returned again. Forget a file to have it returned by the next scan if it is still there.
  void Know(const RingFile& file) { known_.insert(file); }
  void Forget(const RingFile& file) { known_.erase(file); }
  // Drops known files that are gone, so that the set stays as small as the folder.
  void Prune();

 private:
  std::string folder_;
  std::set<RingFile> known_;
};

// Fills device, inode and size of the file at `path`, not following links. False when it is not a regular file.
bool StatRing(const std::string& path, RingFile* file);

// Removes the file if its name still leads to the same inode.
void RemoveRing(const RingFile& file);
// Renames FILE to FILE.corrupt under the same condition. False when it could not.
bool SetAsideRing(const RingFile& file);

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_RING_WATCHER_H_
