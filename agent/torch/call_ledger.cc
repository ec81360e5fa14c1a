#include "agent/torch/call_ledger.h"

#include <algorithm>
#include <cstdint>

namespace trimtab::agent {
namespace {
constexpr size_t kSlots = 2 * CallLedger::kMaxRecords;
static_assert((kSlots & (kSlots - 1)) == 0);
}  // namespace

CallLedger::CallLedger() : slots_(kSlots) {}

// --- address table: linear probing, deletion by shifting back ---------------------------------------------------

size_t CallLedger::Probe(const void* key) const {
  size_t at = (reinterpret_cast<uintptr_t>(key) >> 6) * 0x9E3779B97F4A7C15ull >> 40 & (kSlots - 1);
  while (slots_[at].key != nullptr && slots_[at].key != key) at = (at + 1) & (kSlots - 1);
  return at;
}

void CallLedger::Erase(const void* key) {
  size_t hole = Probe(key);
  if (slots_[hole].key == nullptr) return;
  slots_[hole] = {};
  for (size_t at = (hole + 1) & (kSlots - 1); slots_[at].key != nullptr; at = (at + 1) & (kSlots - 1)) {
    const Slot moved = slots_[at];
    slots_[at] = {};
    slots_[Probe(moved.key)] = moved;
  }
}

void CallLedger::Forget(const void* key) {
  if (const int record = Find(key); record >= 0) {
    records_[record].key = nullptr;
    Erase(key);
  }
}

void CallLedger::Bind(int record, const void* key) {
  ForwardRecord& r = records_[record];
  if (r.key == key) return;
  if (r.key != nullptr) Erase(r.key);
  r.key = nullptr;
  Forget(key);
  if (key == nullptr) return;
  r.key = key;
  slots_[Probe(key)] = {key, record};
}

int CallLedger::Find(const void* key) const {
  if (key == nullptr) return -1;
  const Slot& slot = slots_[Probe(key)];
  return slot.key == nullptr ? -1 : slot.record;
}

// --- records ----------------------------------------------------------------------------------------------------

int CallLedger::SignatureIndex(const CallSignature& signature) {
  for (size_t i = 0; i < signatures_.size(); ++i) {
    if (signatures_[i].signature == signature) return static_cast<int>(i);
  }
  if (signatures_.size() >= kMaxSignatures) return -1;
  signatures_.push_back({signature, 0, 0, {}});
  return static_cast<int>(signatures_.size()) - 1;
}

int CallLedger::Open(const ForwardCall& call, uint64_t step, const Sink& sink) {
  if (backward_seen_) EndPhase(sink);
  const int signature = SignatureIndex(call.signature);
  if (signature < 0) return -1;
  int index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (records_.size() < kMaxRecords) {
    index = static_cast<int>(records_.size());
    records_.emplace_back();
    free_.reserve(records_.size());
  } else {
    index = first_;
    if (!records_[index].done) ++dropped_without_backward_;
    Release(index);
    free_.pop_back();
  }
  ForwardRecord& r = records_[index];
  r.call = call;
  r.signature = signature;
  r.order = call.explicit_layer < 0 ? signatures_[signature].calls_in_phase++ : 0;
  r.sequence = ++sequence_;
  r.step = step;
  r.phase = phase_;
  r.key = nullptr;
  r.mode = 0;
  r.sampled = r.has_forward_stats = r.done = false;
  r.previous = last_;
  r.next = -1;
  (last_ >= 0 ? records_[last_].next : first_) = index;
  last_ = index;
  ++live_;
  return index;
}

void CallLedger::Release(int record) {
  ForwardRecord& r = records_[record];
  if (r.key != nullptr) Erase(r.key);
  r.key = nullptr;
  r.sequence = 0;  // nobody's: a call that still holds the index sees that
  (r.previous >= 0 ? records_[r.previous].next : first_) = r.next;
  (r.next >= 0 ? records_[r.next].previous : last_) = r.previous;
  --live_;
  free_.push_back(record);
}

int CallLedger::MatchRecomputed(const ForwardCall& call) const {
  int fallback = -1;
  for (int i = last_; i >= 0; i = records_[i].previous) {
    const ForwardRecord& r = records_[i];
    if (r.done || !(r.call.signature == call.signature) || r.call.explicit_layer != call.explicit_layer) continue;
    if (r.call.fingerprint == call.fingerprint) return i;
    if (fallback < 0) fallback = i;
  }
  return fallback;
}

void CallLedger::Finish(int record) {
  records_[record].done = true;
  backward_seen_ = true;
}

// --- layers -----------------------------------------------------------------------------------------------------

int CallLedger::ClaimLayer(int layer, const ForwardCall& call) {
  if (layer < 0 || layer >= TRIMTAB_MAX_LAYERS) {
    ++layers_over_limit_;
    return -1;
  }
  if (layers_.size() <= static_cast<size_t>(layer)) layers_.resize(layer + 1);
  layers_[layer] = {true, call.op, call.signature};
  return layer;
}

int CallLedger::LayerOfOrder(SignatureRow* row, int rank, const char* op) {
  while (static_cast<int>(row->layer_of_order.size()) <= rank) {
    const int next = static_cast<int>(layers_.size());
    if (next >= TRIMTAB_MAX_LAYERS) {
      ++layers_over_limit_;
      return -1;
    }
    layers_.push_back({true, op, row->signature});
    row->layer_of_order.push_back(next);
  }
  return row->layer_of_order[rank];
}

int CallLedger::PredictLayer(int record) const {
  const ForwardRecord& r = records_[record];
  if (r.call.explicit_layer >= 0) return r.call.explicit_layer < TRIMTAB_MAX_LAYERS ? r.call.explicit_layer : -1;
  const SignatureRow& row = signatures_[r.signature];
  if (row.layers_per_phase == 0) return -1;
  const size_t order = static_cast<size_t>(r.order % row.layers_per_phase);
  return order < row.layer_of_order.size() ? row.layer_of_order[order] : -1;
}

void CallLedger::EndPhase(const Sink& sink) {
  std::vector<SignatureRow>& rows = signatures_;
  // Ranks count from 0 for every phase that forwards were opened in: a pipeline's last backwards span several.
  int rank[kMaxSignatures] = {};
  uint64_t phase[kMaxSignatures] = {};
  for (int i = first_; i >= 0;) {
    const int next = records_[i].next;
    ForwardRecord& r = records_[i];
    if (r.done) {
      int layer;
      if (r.call.explicit_layer >= 0) {
        layer = ClaimLayer(r.call.explicit_layer, r.call);
      } else {
        const int guess = PredictLayer(i);
        if (rank[r.signature] > 0 && phase[r.signature] != r.phase) rank[r.signature] = 0;
        phase[r.signature] = r.phase;
        layer = LayerOfOrder(&rows[r.signature], rank[r.signature]++, r.call.op);
        if (guess >= 0 && guess != layer) ++order_changes_;
      }
      if (layer >= 0) sink(layer, r);
      Release(i);
    }
    i = next;
  }
  for (size_t s = 0; s < rows.size(); ++s) {
    rows[s].calls_in_phase = 0;
    if (rank[s] > 0) rows[s].layers_per_phase = rank[s];
  }
  ++phase_;
  backward_seen_ = false;
}

void CallLedger::CloseStep(uint64_t step, const Sink& sink) {
  EndPhase(sink);
  while (first_ >= 0 && records_[first_].step < step) {
    ++dropped_without_backward_;
    Release(first_);
  }
}

void CallLedger::Clear() {
  while (first_ >= 0) Release(first_);
  for (SignatureRow& row : signatures_) row.calls_in_phase = 0;
  backward_seen_ = false;
}

}  // namespace trimtab::agent
