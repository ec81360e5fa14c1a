#include "agent/courier/step_queue.h"

#include <algorithm>
#include <utility>

#include "agent/courier/limits.h"

namespace trimtab::courier {

StepQueue::StepQueue(std::unique_ptr<SpoolLog> log) : log_(std::move(log)), last_(log_->last_sequence()) {
  log_->set_drop_listener([this](absl::Span<const uint64_t> sequences) { OnDropped(sequences); });
}

void StepQueue::Push(uint64_t sequence, std::string bytes) {
  last_ = sequence;
  memory_bytes_ += bytes.size();
  memory_.push_back({sequence, std::move(bytes)});
}

absl::Status StepQueue::Spill() {
  while (!memory_.empty()) {
    const Queued& oldest = memory_.front();
    if (absl::Status status = log_->Append(oldest.sequence, oldest.bytes); !status.ok()) return status;
    memory_bytes_ -= oldest.bytes.size();
    memory_.pop_front();
  }
  return absl::OkStatus();
}

void StepQueue::ForgetMemoryTo(uint64_t sequence) {
  while (!memory_.empty() && memory_.front().sequence <= sequence) {
    memory_bytes_ -= memory_.front().bytes.size();
    memory_.pop_front();
  }
}

void StepQueue::Resume(uint64_t durable) {
  acked_ = durable;
  sent_ = durable;
  last_ = std::max(last_, durable);
  sent_known_ = true;
  in_flight_.clear();
  in_flight_bytes_ = 0;
  from_disk_.reset();
  for (const SequenceRange& range : log_->meta().uncertain()) {
    if (range.last() > durable) CountDropped(range.last() - std::max(range.first() - 1, durable));
  }
  log_->meta().clear_uncertain();
  ForgetMemoryTo(durable);
  log_->Rewind();
  log_->TrimTo(durable);
}

void StepQueue::Ack(uint64_t durable) {
  if (durable > sent_ || durable <= acked_) return;
  acked_ = durable;
  while (!in_flight_.empty() && in_flight_.front().last <= durable) {
    in_flight_bytes_ -= in_flight_.front().bytes;
    in_flight_.pop_front();
  }
  auto* uncertain = log_->meta().mutable_uncertain();
  while (!uncertain->empty() && uncertain->begin()->last() <= durable) uncertain->erase(uncertain->begin());
  ForgetMemoryTo(durable);
  log_->TrimTo(durable);
}

// The spool removed these to keep its bound.
void StepQueue::OnDropped(absl::Span<const uint64_t> sequences) {
  auto* uncertain = log_->meta().mutable_uncertain();
  for (const uint64_t sequence : sequences) {
    if (from_disk_.has_value() && from_disk_->sequence == sequence) from_disk_.reset();
    if (sequence <= acked_) continue;
    if (sent_known_ && sequence > sent_) {
      CountDropped(1);
    } else if (!uncertain->empty() && uncertain->rbegin()->last() + 1 == sequence) {
      uncertain->rbegin()->set_last(sequence);
    } else if (uncertain->size() < static_cast<int>(kMaxUncertainRanges)) {
      SequenceRange* range = uncertain->Add();
      range->set_first(sequence);
      range->set_last(sequence);
    } else {
      CountDropped(1);
    }
  }
}

// The first step behind sent_; nullptr when there is none.
const StepQueue::Queued* StepQueue::PeekNext() {
  if (from_disk_.has_value() && from_disk_->sequence > sent_) return &*from_disk_;
  from_disk_.emplace();
  uint64_t lost = 0;
  if (log_->ReadAfter(sent_, &from_disk_->sequence, &from_disk_->bytes, &lost)) {
    // Rewinding reads over the same damage again.
    if (from_disk_->sequence > damage_counted_to_) CountDropped(lost);
    damage_counted_to_ = std::max(damage_counted_to_, from_disk_->sequence);
    return &*from_disk_;
  }
  from_disk_.reset();
  const auto next = std::partition_point(memory_.begin(), memory_.end(),
                                         [this](const Queued& queued) { return queued.sequence <= sent_; });
  return next == memory_.end() ? nullptr : &*next;
}

bool StepQueue::FillBatch(v1::StepBatch* batch) {
  if (in_flight_.size() >= kMaxInFlightBatches) return false;
  size_t bytes = 0;
  size_t steps = 0;
  while (steps < kMaxBatchSteps) {
    const Queued* next = PeekNext();
    if (next == nullptr) break;
    if (bytes > 0 && bytes + next->bytes.size() > kMaxBatchBytes) break;
    if (!in_flight_.empty() && in_flight_bytes_ + bytes + next->bytes.size() > kMaxInFlightBytes) break;
    sent_ = next->sequence;
    bytes += next->bytes.size();
    if (batch->add_steps()->ParseFromString(next->bytes)) {
      ++steps;
    } else {
      batch->mutable_steps()->RemoveLast();
      CountDropped(1);
    }
  }
  if (steps == 0) return false;
  in_flight_.push_back({sent_, bytes});
  in_flight_bytes_ += bytes;
  return true;
}

bool StepQueue::Delivered() {
  if (acked_ < sent_ || PeekNext() != nullptr) return false;
  if (!log_->empty()) {
    CountDropped(log_->CountAfter(sent_));
    log_->TrimTo(UINT64_MAX);
  }
  return true;
}

}  // namespace trimtab::courier
