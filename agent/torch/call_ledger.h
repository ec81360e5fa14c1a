// Pairs attention forwards with their backwards and says which layer a call belongs to.
//
// A forward is a training forward when its backward comes: only then are its statistics kept. The pair is found by the
// address of the output's storage, which autograd, activation checkpointing and compiled graphs all hand to the
// backward unchanged (docs/hooks.md says why the log-sum-exp does not serve). Layers are named by the caller
// (eager mode: the module) or by the order of calls within a forward phase, among calls of one signature.
#ifndef TRIMTAB_AGENT_TORCH_CALL_LEDGER_H_
#define TRIMTAB_AGENT_TORCH_CALL_LEDGER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trimtab/agent.h"
#include "trimtab/kernels.h"

namespace trimtab::agent {

// What stays the same from step to step for one attention layer. Batch and sequence length are not part of it.
struct CallSignature {
  int32_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  trimtab_dtype dtype = TRIMTAB_F32;
  bool causal = false;
  bool operator==(const CallSignature&) const = default;
};

struct ForwardCall {
  const char* op = "";  // a literal
  CallSignature signature;
  int explicit_layer = -1;   // -1: by call order
  uint64_t fingerprint = 0;  // of the query's contents: finds the forward that a recomputation repeats
};

struct ForwardRecord {
  ForwardCall call;
  int signature = 0;  // row of the signature table
  int order = 0;      // among by-order calls of the signature in this phase
  uint64_t sequence = 0, step = 0, phase = 0;
  const void* key = nullptr;  // output storage; nullptr once that address was given to somebody else
  uint32_t mode = 0;          // trimtab_mode this call ran in
  bool sampled = false;
  bool has_forward_stats = false;  // statistics were taken by the forward itself
  bool done = false;               // its backward came
  int previous = -1, next = -1;    // list of live records by sequence
  std::vector<trimtab_head_stats> stats;
};

struct LayerDescription {
  bool seen = false;
  const char* op = "";
  CallSignature signature;
};

// Not thread-safe; the session's lock guards it. Allocates only while the number of calls in flight grows.
class CallLedger {
 public:
  static constexpr int kMaxRecords = 4096;
  static constexpr int kMaxSignatures = 64;

  // Takes a finished pair: its layer and record.
  using Sink = std::function<void(int layer, const ForwardRecord& record)>;

  CallLedger();

  // A forward outside of any backward. Ends the phase (handing its pairs to `sink`) when a backward came since it
  // began. Returns the record's index, or -1 when there are too many signatures. With all records in use the oldest is
  // dropped and counted.
  int Open(const ForwardCall& call, uint64_t step, const Sink& sink);
  // The forward that a call inside a backward repeats: same contents, else the latest open one of the same layer and
  // signature; -1 when there is none.
  int MatchRecomputed(const ForwardCall& call) const;
  // Says where the output of a record lies. Takes the address away from any older record.
  void Bind(int record, const void* key);
  // The address now belongs to a call that is not recorded.
  void Forget(const void* key);
  // The record whose output lies at `key`, or -1. One backward per record: a second one (retain_graph) finds it too.
  int Find(const void* key) const;
  // The backward of the record came.
  void Finish(int record);

  // Best guess of the layer while the forward runs; -1 before the signature's first phase has ended.
  int PredictLayer(int record) const;

  // Ends the phase and drops records that are older than the step before `step`.
  void CloseStep(uint64_t step, const Sink& sink);
  // Drops everything.
  void Clear();

  ForwardRecord& record(int index) { return records_[index]; }

  uint64_t dropped_without_backward() const { return dropped_without_backward_; }
  uint64_t layers_over_limit() const { return layers_over_limit_; }
  uint64_t order_changes() const { return order_changes_; }
  int live() const { return live_; }
  // By layer index.
  const std::vector<LayerDescription>& layers() const { return layers_; }

 private:
  struct SignatureRow {
    CallSignature signature;
    int calls_in_phase = 0;
    int layers_per_phase = 0;         // of the last phase with a backward; 0: none yet
    std::vector<int> layer_of_order;  // rank among finished by-order calls of a phase -> layer
  };
  struct Slot {
    const void* key = nullptr;
    int record = -1;
  };

  int SignatureIndex(const CallSignature& signature);
  void EndPhase(const Sink& sink);
  int LayerOfOrder(SignatureRow* row, int rank, const char* op);
  int ClaimLayer(int layer, const ForwardCall& call);
  void Release(int record);
  size_t Probe(const void* key) const;
  void Erase(const void* key);

  std::vector<ForwardRecord> records_;
  std::vector<int> free_;
  std::vector<Slot> slots_;  // open addressing, twice kMaxRecords
  std::vector<SignatureRow> signatures_;
  std::vector<LayerDescription> layers_;
  int first_ = -1, last_ = -1, live_ = 0;
  uint64_t sequence_ = 0, phase_ = 0;
  bool backward_seen_ = false;
  uint64_t dropped_without_backward_ = 0, layers_over_limit_ = 0, order_changes_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_CALL_LEDGER_H_
