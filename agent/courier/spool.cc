#include "agent/courier/spool.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/core/crc32c.h"
#include "agent/courier/limits.h"
#include "agent/courier/spool_meta.h"
#include "proto/status/status.h"

namespace trimtab::courier {
namespace {

constexpr char kMetaName[] = "meta";
constexpr char kLockName[] = "lock";

// mkdir -p with mode 0700.
absl::Status MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0700);
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, "cannot make " + path);
  return absl::OkStatus();
}

std::vector<std::string> List(const std::string& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// 0 when the name is not that of a segment.
uint64_t SegmentId(const std::string& name) {
  uint64_t id = 0;
  if (name.size() != 20 || !absl::EndsWith(name, ".seg")) return 0;
  return absl::SimpleHexAtoi(name.substr(0, 16), &id) ? id : 0;
}

}  // namespace

SpoolLog::SpoolLog(Spool* spool, std::string folder) : spool_(spool), folder_(std::move(folder)) {
  spool_->logs_.insert(this);
}

SpoolLog::~SpoolLog() {
  spool_->logs_.erase(this);
  for (const Segment& segment : segments_) spool_->bytes_ -= segment.bytes;
}

std::string SpoolLog::SegmentPath(uint64_t id) const {
  return absl::StrCat(folder_, "/", absl::Hex(id, absl::kZeroPad16), ".seg");
}

absl::Status SpoolLog::Prepare() {
  if (lock_.has_value()) return absl::OkStatus();
  TRIMTAB_RETURN_IF_ERROR(MakeFolders(folder_));
  TRIMTAB_ASSIGN_OR_RETURN(std::optional<FileLock> lock, FileLock::Try(absl::StrCat(folder_, "/", kLockName)));
  if (!lock.has_value()) return absl::UnavailableError(absl::StrCat(folder_, " is held by another courier"));
  lock_ = std::move(lock);
  if (absl::Status status = WriteMeta(false); !status.ok()) {
    RemoveFolder();
    return status;
  }
  return absl::OkStatus();
}

absl::Status SpoolLog::WriteMeta(bool sync) {
  meta_.set_version(1);
  return WriteSpoolMeta(absl::StrCat(folder_, "/", kMetaName), meta_, sync);
}

absl::Status SpoolLog::SaveMeta() { return lock_.has_value() ? WriteMeta(false) : absl::OkStatus(); }

absl::Status SpoolLog::Seal() {
  TRIMTAB_RETURN_IF_ERROR(Prepare());
  if (writer_.has_value()) TRIMTAB_RETURN_IF_ERROR(writer_->Sync());
  return WriteMeta(true);
}

absl::Status SpoolLog::StartSegment() {
  if (writer_.has_value()) {
    // A full segment is safe from the machine's death too; the newest may not be.
    TRIMTAB_RETURN_IF_ERROR(writer_->Sync());
    writer_.reset();
  }
  TRIMTAB_ASSIGN_OR_RETURN(SegmentWriter writer, SegmentWriter::Create(SegmentPath(next_id_)));
  Segment& segment = segments_.emplace_back();
  segment.id = next_id_++;
  segment.order = spool_->next_order_++;
  segment.bytes = writer.bytes();
  segment.last = last_sequence_;
  spool_->bytes_ += segment.bytes;
  writer_ = std::move(writer);
  return absl::OkStatus();
}

absl::Status SpoolLog::Append(uint64_t sequence, absl::string_view payload) {
  const uint64_t need = kRecordHeaderBytes + payload.size();
  if (!spool_->Reserve(need + kSegmentHeaderBytes)) {
    last_sequence_ = sequence;
    if (drop_listener_) drop_listener_({sequence});
    return absl::OkStatus();
  }
  TRIMTAB_RETURN_IF_ERROR(Prepare());
  if (!writer_.has_value() || writer_->bytes() + need > spool_->segment_bytes_) {
    TRIMTAB_RETURN_IF_ERROR(StartSegment());
  }
  TRIMTAB_RETURN_IF_ERROR(writer_->Append(sequence, payload));
  segments_.back().bytes += need;
  segments_.back().last = sequence;
  spool_->bytes_ += need;
  last_sequence_ = sequence;
  return absl::OkStatus();
}

bool SpoolLog::ReadAfter(uint64_t after, uint64_t* sequence, std::string* payload, uint64_t* lost) {
  if (segments_.empty() || after >= segments_.back().last) return false;
  while (true) {
    if (!reader_.has_value()) {
      const auto next = std::find_if(segments_.begin(), segments_.end(),
                                     [this, after](const Segment& s) { return s.id > reader_id_ && s.last > after; });
      if (next == segments_.end()) return false;
      reader_id_ = next->id;
      damage_seen_ = 0;
      absl::StatusOr<SegmentReader> reader = SegmentReader::Open(SegmentPath(next->id));
      if (!reader.ok()) {
        damaged_ = true;
        continue;
      }
      reader_ = *std::move(reader);
    }
    if (reader_->Next(sequence, payload) == SegmentReader::Result::kRecord) {
      if (reader_->damage() != damage_seen_) damaged_ = true;
      damage_seen_ = reader_->damage();
      const uint64_t before = std::max(last_read_, after);
      last_read_ = *sequence;
      const bool damaged = std::exchange(damaged_, false);
      if (*sequence <= after) continue;
      *lost = damaged ? *sequence - before - 1 : 0;
      return true;
    }
    if (reader_->damage() != damage_seen_) damaged_ = true;
    damage_seen_ = reader_->damage();
    if (writer_.has_value() && reader_id_ == segments_.back().id) return false;
    reader_.reset();
  }
}

void SpoolLog::Rewind() {
  reader_.reset();
  reader_id_ = 0;
  last_read_ = 0;
  damaged_ = false;
}

std::vector<uint64_t> SpoolLog::Sequences(const Segment& segment) const {
  std::vector<uint64_t> sequences;
  absl::StatusOr<SegmentReader> reader = SegmentReader::Open(SegmentPath(segment.id));
  uint64_t sequence = 0;
  while (reader.ok() && reader->Next(&sequence, nullptr) == SegmentReader::Result::kRecord)
    sequences.push_back(sequence);
  return sequences;
}

uint64_t SpoolLog::CountAfter(uint64_t sequence) const {
  uint64_t count = 0;
  for (const Segment& segment : segments_) {
    if (segment.last <= sequence) continue;
    for (const uint64_t stored : Sequences(segment)) count += stored > sequence ? 1 : 0;
  }
  return count;
}

void SpoolLog::RemoveFront() {
  const Segment& front = segments_.front();
  if (segments_.size() == 1) writer_.reset();
  if (reader_id_ == front.id) reader_.reset();
  unlink(SegmentPath(front.id).c_str());
  spool_->bytes_ -= front.bytes;
  segments_.pop_front();
}

void SpoolLog::DropFront() {
  const std::vector<uint64_t> sequences = Sequences(segments_.front());
  RemoveFront();
  if (drop_listener_) drop_listener_(sequences);
  WriteMeta(false).IgnoreError();  // only counts; written again with the next drop
}

void SpoolLog::TrimTo(uint64_t sequence) {
  while (!segments_.empty() && segments_.front().last <= sequence) RemoveFront();
  // An ended channel's meta file stays for its Goodbye.
  if (segments_.empty() && lock_.has_value() && !meta_.ended()) RemoveFolder();
}

void SpoolLog::Remove() {
  while (!segments_.empty()) RemoveFront();
  if (lock_.has_value()) RemoveFolder();
}

void SpoolLog::RemoveFolder() {
  for (const char* name : {kMetaName, kLockName}) unlink(absl::StrCat(folder_, "/", name).c_str());
  rmdir(folder_.c_str());
  lock_.reset();
}

// Looks at what an earlier courier left. The folder is locked.
bool SpoolLog::Load() {
  absl::StatusOr<SpoolMeta> meta = ReadSpoolMeta(absl::StrCat(folder_, "/", kMetaName));
  if (!meta.ok() || !meta->hello().has_rank()) return false;
  meta_ = *std::move(meta);
  for (const std::string& name : List(folder_)) {
    const uint64_t id = SegmentId(name);
    struct stat info;
    if (id == 0 || lstat(absl::StrCat(folder_, "/", name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    Segment segment;
    segment.id = id;
    segment.order = spool_->next_order_++;
    segment.bytes = static_cast<uint64_t>(info.st_size);
    const std::vector<uint64_t> sequences = Sequences(segment);
    segment.last = sequences.empty() ? last_sequence_ : sequences.back();
    last_sequence_ = std::max(last_sequence_, segment.last);
    spool_->bytes_ += segment.bytes;
    segments_.push_back(segment);
    next_id_ = id + 1;
  }
  return true;
}

Spool::Spool(Options options)
    : options_(std::move(options)),
      segment_bytes_(std::clamp<uint64_t>(options_.max_bytes / 8, kMinSegmentBytes, kMaxSegmentBytes)) {}

std::vector<std::unique_ptr<SpoolLog>> Spool::Adopt(bool any_server, size_t limit) {
  std::vector<std::unique_ptr<SpoolLog>> found;
  foreign_channels_ = 0;
  for (const std::string& name : List(options_.folder)) {
    if (found.size() >= limit) break;
    const std::string folder = absl::StrCat(options_.folder, "/", name);
    struct stat info;
    if (absl::EndsWith(name, ".corrupt") || lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    const bool ours =
        std::any_of(logs_.begin(), logs_.end(), [&](const SpoolLog* log) { return log->folder_ == folder; });
    if (ours) continue;
    absl::StatusOr<std::optional<FileLock>> lock = FileLock::Try(absl::StrCat(folder, "/", kLockName));
    if (!lock.ok() || !lock->has_value()) continue;
    std::unique_ptr<SpoolLog> log(new SpoolLog(this, folder));
    log->lock_ = *std::move(lock);
    if (access(absl::StrCat(folder, "/", kMetaName).c_str(), F_OK) != 0) {
      log->RemoveFolder();  // its courier was deleting it
      continue;
    }
    if (!log->Load()) {
      rename(folder.c_str(), absl::StrCat(folder, ".corrupt").c_str());
      continue;
    }
    if (!any_server && log->meta_.server() != options_.server) {
      ++foreign_channels_;
      continue;
    }
    log->meta_.set_server(options_.server);
    found.push_back(std::move(log));
  }
  return found;
}

std::unique_ptr<SpoolLog> Spool::Create(const v1::Hello& hello) {
  const v1::RankInfo& rank = hello.rank();
  const uint32_t run = agent::Crc32c(0, rank.run().data(), rank.run().size());
  std::unique_ptr<SpoolLog> log(
      new SpoolLog(this, absl::StrCat(options_.folder, "/", absl::Hex(rank.incarnation(), absl::kZeroPad16), "-",
                                      rank.rank(), "-", absl::Hex(run, absl::kZeroPad8))));
  log->meta_.set_server(options_.server);
  *log->meta_.mutable_hello() = hello;
  return log;
}

bool Spool::Reserve(uint64_t bytes) {
  if (bytes > options_.max_bytes) return false;
  while (bytes_ + bytes > options_.max_bytes) {
    SpoolLog* oldest = nullptr;
    for (SpoolLog* log : logs_) {
      if (log->segments_.empty()) continue;
      if (oldest == nullptr || log->segments_.front().order < oldest->segments_.front().order) oldest = log;
    }
    if (oldest == nullptr) return false;
    oldest->DropFront();
  }
  return true;
}

}  // namespace trimtab::courier
