// Unacknowledged steps on disk: a folder per channel, segment files inside, one bound over all of them.
//
// One thread. Nothing is created before the first step has to be stored, and nothing is left when all is delivered.
// Several couriers may share a spool folder: each channel's folder is locked by the courier that serves it.
#ifndef TRIMTAB_AGENT_COURIER_SPOOL_H_
#define TRIMTAB_AGENT_COURIER_SPOOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/courier/file_lock.h"
#include "agent/courier/spool.pb.h"
#include "agent/courier/spool_segment.h"

namespace trimtab::courier {

class Spool;

// The spooled steps of one channel, in ascending sequence. Owned by its channel; must not outlive the Spool.
class SpoolLog {
 public:
  // Called with the sequences of steps that were removed to keep the bound.
  using DropListener = std::function<void(absl::Span<const uint64_t>)>;

  ~SpoolLog();
  SpoolLog(const SpoolLog&) = delete;
  SpoolLog& operator=(const SpoolLog&) = delete;

  void set_drop_listener(DropListener listener) { drop_listener_ = std::move(listener); }

  // Stored with the steps, so that they can be delivered without their ring. Written when the folder is made, by
  // SaveMeta, and after a drop.
  SpoolMeta& meta() { return meta_; }
  // Writes the meta file if the channel has anything on disk; else there is nothing to say.
  absl::Status SaveMeta();
  // Like SaveMeta, but also when there are no steps, and with everything synced to the disk.
  absl::Status Seal();

  // Stores a step; `sequence` must be above last_sequence(). Drops the oldest segments of the whole spool when the
  // bound asks for it (a step larger than the bound is dropped itself). RESOURCE_EXHAUSTED: disk full; nothing changed.
  absl::Status Append(uint64_t sequence, absl::string_view payload);

  // The next step with a sequence above `after`, in order; false when there is none (more may be appended). Reading is
  // sequential: a lower `after` than before needs Rewind. *lost is the number of steps that damage took just before it.
  bool ReadAfter(uint64_t after, uint64_t* sequence, std::string* payload, uint64_t* lost);
  void Rewind();

  // Removes the segments whose steps are all at or below `sequence`, and with the last of them the folder, unless
  // meta().ended() says that a Goodbye is still to come.
  void TrimTo(uint64_t sequence);
  // Removes everything.
  void Remove();
  // Steps above `sequence` that are stored, as far as their headers can be read.
  uint64_t CountAfter(uint64_t sequence) const;

  bool empty() const { return segments_.empty(); }
  // Newest step ever stored, also when it was delivered since.
  uint64_t last_sequence() const { return last_sequence_; }
  const std::string& folder() const { return folder_; }

 private:
  friend class Spool;
  struct Segment {
    uint64_t id = 0;     // the file's name; ascending
    uint64_t order = 0;  // over the whole spool; the smallest is dropped first
    uint64_t bytes = 0;
    uint64_t last = 0;
  };

  SpoolLog(Spool* spool, std::string folder);
  std::string SegmentPath(uint64_t id) const;
  absl::Status Prepare();
  absl::Status StartSegment();
  absl::Status WriteMeta(bool sync);
  bool Load();
  std::vector<uint64_t> Sequences(const Segment& segment) const;
  void RemoveFront();
  void DropFront();
  void RemoveFolder();

  Spool* spool_;
  std::string folder_;
  std::optional<FileLock> lock_;  // held while the folder exists
  SpoolMeta meta_;
  DropListener drop_listener_;
  std::deque<Segment> segments_;
  std::optional<SegmentWriter> writer_;  // of the last segment
  std::optional<SegmentReader> reader_;
  uint64_t reader_id_ = 0;    // segment of reader_, or the last one read to its end
  uint64_t damage_seen_ = 0;  // of reader_
  bool damaged_ = false;      // since the last step that was read
  uint64_t last_read_ = 0;
  uint64_t next_id_ = 1;
  uint64_t last_sequence_ = 0;
};

class Spool {
 public:
  struct Options {
    std::string folder;
    uint64_t max_bytes = uint64_t{1} << 30;
    std::string server;  // stored with each channel
  };
  explicit Spool(Options options);

  // Channels that an earlier courier left, of `server` only unless `any_server`; not those that another courier holds.
  // Damaged ones are renamed to *.corrupt. At most `limit`.
  std::vector<std::unique_ptr<SpoolLog>> Adopt(bool any_server, size_t limit);
  // The log of a new channel; nothing is created yet.
  std::unique_ptr<SpoolLog> Create(const v1::Hello& hello);

  uint64_t bytes() const { return bytes_; }
  // Channels seen by Adopt that belong to other servers.
  size_t foreign_channels() const { return foreign_channels_; }

 private:
  friend class SpoolLog;
  // Makes room for `bytes` more by dropping the oldest segments. False when that is impossible.
  bool Reserve(uint64_t bytes);

  Options options_;
  uint64_t segment_bytes_;
  std::set<SpoolLog*> logs_;
  uint64_t bytes_ = 0;  // of all segments
  uint64_t next_order_ = 1;
  size_t foreign_channels_ = 0;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_SPOOL_H_
