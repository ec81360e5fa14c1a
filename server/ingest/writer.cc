#include "server/ingest/writer.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/ingest/session.h"

namespace trimtab::server {
namespace {

constexpr absl::Duration kIdleWait = absl::Seconds(1);
constexpr size_t kMaxEventKinds = 4096;

// The steps are good, the disk was full or an error came from below: another attempt, or, after ABORTED, another life of
// this process, may store them.
bool IsTransient(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) || absl::IsInternal(status) ||
         absl::IsDataLoss(status) || absl::IsAborted(status);
}

// A courier asks again after UNAVAILABLE and gives a channel up after anything that no retry mends.
Rejection StoreRejection(const absl::Status& status) {
  return {RefusalReason::kStore, IsTransient(status) ? absl::StatusCode::kUnavailable : status.code(),
          std::string(status.message())};
}

}  // namespace

void Writer::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Writer::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  queue_->Close();
  thread_.join();
}

void Writer::Loop() {
  std::vector<WriteItem> items;
  int64_t last_expiry = 0;
  while (queue_->Pop(options_.max_commit_bytes, kIdleWait, &items)) {
    Process(&items);
    queue_->Release(items);
    items.clear();
    for (const auto& session : queue_->TakePaused()) session->ResumeReading();
    const int64_t now = absl::GetCurrentTimeNanos();
    if (now - last_expiry < absl::ToInt64Nanoseconds(kIdleWait)) continue;
    table_->Expire(now);
    last_expiry = now;
  }
}

void Writer::Process(std::vector<WriteItem>* items) {
  RegisterRanks(items);
  UpdateRanks(*items);
  std::vector<Steps> fresh(items->size());
  CommitSteps(*items, &fresh);
  for (size_t i = 0; i < items->size(); ++i) Announce((*items)[i], fresh[i]);
}

// --- durable ---------------------------------------------------------------------------------------------------

std::shared_ptr<RankProgress> Writer::FindProgress(const RankKey& rank, uint64_t last_sequence) {
  if (progress_.size() >= sweep_at_) {
    std::erase_if(progress_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(1024, 2 * progress_.size());
  }
  auto& known = progress_[rank];
  auto progress = known.lock();
  if (progress == nullptr) {
    progress = std::make_shared<RankProgress>(RankProgress{last_sequence});
    known = progress;
  }
  return progress;
}

void Writer::RegisterRanks(std::vector<WriteItem>* items) {
  std::vector<RankRegistration> ranks;
  std::vector<WriteItem*> hellos;
  for (WriteItem& item : *items) {
    if (item.kind != WriteItem::Kind::kHello) continue;
    const v1::Hello& hello = item.message->hello();
    ranks.push_back({&hello.rank(), item.channel->metrics.rows()});
    hellos.push_back(&item);
  }
  if (ranks.empty()) return;
  const auto answers = store_->RegisterRanks(ranks);
  for (size_t i = 0; i < answers.size(); ++i) {
    Channel& channel = *hellos[i]->channel;
    if (answers[i].ok()) {
      channel.registered = true;
      channel.progress = FindProgress(channel.rank, *answers[i]);
      continue;
    }
    spdlog::warn("rank {} of run {} refused: {}", channel.rank.rank, channel.rank.run,
                 std::string(answers[i].status().message()));
    table_->Release(hellos[i]->channel, LeaveReason::kDisconnected, std::string(answers[i].status().message()));
    RefuseChannel(channel, StoreRejection(answers[i].status()), /*fatal=*/false);
  }
}

void Writer::UpdateRanks(const std::vector<WriteItem>& items) {
  std::vector<const v1::RankInfo*> infos;
  for (const WriteItem& item : items) {
    if (item.kind != WriteItem::Kind::kUpdate || !item.channel->registered) continue;
    // Who the rank is was settled by its Hello.
    v1::RankInfo* info = item.message->mutable_update()->mutable_rank();
    info->set_run(item.channel->rank.run);
    info->set_rank(item.channel->rank.rank);
    info->set_incarnation(item.channel->rank.incarnation);
    infos.push_back(info);
  }
  if (infos.empty()) return;
  if (const absl::Status status = store_->UpdateRanks(infos); !status.ok()) {
    spdlog::error("rank information is not stored: {}", std::string(status.message()));
  }
}

void Writer::CommitSteps(const std::vector<WriteItem>& items, std::vector<Steps>* fresh) {
  std::vector<RankSteps> batch;
  std::vector<Staged> staged;  // of the batch's entries
  std::map<const RankProgress*, size_t> index;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind != WriteItem::Kind::kSteps || !items[i].channel->registered) continue;
    RankProgress& progress = *items[i].channel->progress;
    const auto [at, added] = index.try_emplace(&progress, batch.size());
    if (added) {
      batch.push_back({items[i].channel->rank, {}});
      staged.push_back({&progress, progress.last_sequence});
    }
    for (const v1::Step& step : items[i].message->steps().steps()) {
      if (step.sequence() <= progress.last_sequence) {
        ++counters_->duplicate_steps;
        continue;
      }
      progress.last_sequence = step.sequence();
      batch[at->second].steps.push_back(&step);
      (*fresh)[i].push_back(&step);
    }
  }
  if (std::all_of(batch.begin(), batch.end(), [](const RankSteps& steps) { return steps.steps.empty(); })) return;
  if (!CommitBatch(batch)) CommitOneByOne(batch, staged, items, fresh);
  for (const Steps& steps : *fresh) {
    counters_->steps += steps.size();
    for (const v1::Step* step : steps) {
      for (const v1::Block& block : step->blocks()) {
        counters_->values += static_cast<uint64_t>(block.float32_size() + block.uint64_size());
      }
    }
  }
}

bool Writer::CommitBatch(const std::vector<RankSteps>& batch) {
  std::string said;
  for (int attempt = 0;; ++attempt) {
    const absl::Time start = absl::Now();
    const absl::Status status = store_->AppendSteps(batch);
    if (status.ok()) {
      counters_->Committed(absl::ToDoubleSeconds(absl::Now() - start));
      return true;
    }
    ++counters_->commit_failures;
    if (attempt % 60 == 0 || said != status.message()) {
      said = std::string(status.message());
      spdlog::error("steps are not stored, will try again: {}", said);
    }
    if (absl::IsAborted(status) && !std::exchange(told_broken_, true) && options_.on_store_broken) {
      options_.on_store_broken(status);
    }
    if (!IsTransient(status) || stopping_) return false;
    absl::SleepFor(absl::Seconds(options_.retry_seconds));
  }
}

void Writer::CommitOneByOne(const std::vector<RankSteps>& batch, const std::vector<Staged>& staged,
                            const std::vector<WriteItem>& items, std::vector<Steps>* fresh) {
  for (size_t b = 0; b < batch.size(); ++b) {
    const RankSteps& steps = batch[b];
    const absl::Status status = store_->AppendSteps({&steps, 1});
    if (status.ok()) continue;
    spdlog::error("steps of rank {} of run {} are not stored: {}", steps.rank.rank, steps.rank.run,
                  std::string(status.message()));
    staged[b].progress->last_sequence = staged[b].sequence_before;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].kind != WriteItem::Kind::kSteps || items[i].channel->rank != steps.rank) continue;
      (*fresh)[i].clear();
      if (!std::exchange(items[i].channel->registered, false)) continue;
      RefuseChannel(*items[i].channel, StoreRejection(status), /*fatal=*/true);
    }
  }
}

void Writer::RefuseChannel(Channel& channel, const Rejection& rejection, bool fatal) {
  channel.refused = true;
  channel.session->Refuse(channel.id, rejection, fatal, channel.rank.run);
}

// --- afterwards ------------------------------------------------------------------------------------------------

void Writer::Announce(const WriteItem& item, const Steps& fresh) {
  switch (item.kind) {
    case WriteItem::Kind::kHello:
      return AnnounceHello(item);
    case WriteItem::Kind::kLeft:
      return AnnounceLeft(item);
    case WriteItem::Kind::kEvent:
      return AppendEvent(item);
    case WriteItem::Kind::kStreamEnd:
      return item.session->FinishAfterFlush(item.session->end_status());
    default:
      break;
  }
  if (!item.channel->registered) {
    ++counters_->orphan_messages;
    return;
  }
  const RankKey& rank = item.channel->rank;
  switch (item.kind) {
    case WriteItem::Kind::kSteps:
      item.channel->session->AckDurable(item.channel->id, item.channel->progress->last_sequence);
      if (fresh.empty()) return;
      for (StepListener* listener : step_listeners_) listener->OnSteps(rank, fresh);
      return;
    case WriteItem::Kind::kAck:
      for (AckListener* listener : ack_listeners_) listener->OnAck(rank, item.message->ack());
      return;
    case WriteItem::Kind::kUpdate:
      for (StepListener* listener : step_listeners_) listener->OnRankUpdated(rank, item.message->update().rank());
      return;
    default:
      return;
  }
}

void Writer::AnnounceHello(const WriteItem& item) {
  Channel& channel = *item.channel;
  if (!channel.registered) return;
  if (item.replaced != nullptr) {
    AnnounceLeft({.channel = item.replaced,
                  .reason = LeaveReason::kReplaced,
                  .detail = "another incarnation took over after its stream fell silent"});
    RefuseChannel(*item.replaced,
                  {RefusalReason::kDuplicateRank, absl::StatusCode::kAborted,
                   "another incarnation of this rank took over after this stream fell silent"},
                  /*fatal=*/false);
  }
  v1::ServerMessage message;
  message.mutable_welcome()->set_channel(channel.id);
  message.mutable_welcome()->set_last_durable_sequence(channel.progress->last_sequence);
  message.mutable_welcome()->set_sample_every_steps(options_.sample_every_steps);
  channel.session->Reply(std::move(message));
  table_->Welcomed(item.channel);
  const v1::Hello& hello = item.message->hello();
  for (StepListener* listener : step_listeners_) {
    listener->OnRankJoined(channel.rank, hello.rank(), channel.metrics.rows());
  }
}

void Writer::AnnounceLeft(const WriteItem& item) {
  // A server that stops is no news about its runs.
  if (!item.channel->registered || item.channel->session->server_stopped()) return;
  for (StepListener* listener : step_listeners_) listener->OnRankLeft(item.channel->rank, item.reason, item.detail);
}

void Writer::AppendEvent(const WriteItem& item) {
  const int64_t now = absl::GetCurrentTimeNanos();
  if (last_event_nanos_.size() >= kMaxEventKinds) last_event_nanos_.clear();
  int64_t& last = last_event_nanos_[{absl::StrCat(item.event.kind(), " ", item.event.detector()), item.event.run()}];
  if (last != 0 && now - last < static_cast<int64_t>(options_.event_gap_seconds * 1e9)) return;
  last = now;
  if (const auto id = store_->Append(item.event); !id.ok()) {
    spdlog::error("event is not stored: {}", std::string(id.status().message()));
  }
}

}  // namespace trimtab::server
