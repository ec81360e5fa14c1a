// One attention call of torch in the terms of the kernels.
#ifndef TRIMTAB_AGENT_TORCH_ATTENTION_CALL_H_
#define TRIMTAB_AGENT_TORCH_ATTENTION_CALL_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/torch/call_ledger.h"
#include "agent/torch/hook_table.h"
#include "trimtab/kernels.h"

namespace trimtab::agent {

// Positions of a row's arguments in one operator's schema; -1: absent.
struct ArgumentMap {
  int count = 0;  // arguments of the schema
  int query = -1, key = -1, value = -1, mask = -1, dropout = -1, causal = -1, scale = -1, out = -1, lse = -1,
      grad_out = -1;
};
// False, with the reason, when a named argument is missing or the schema has an argument that no row names.
bool MapArguments(const c10::FunctionSchema& schema, const HookArguments& names, ArgumentMap* map, std::string* error);

struct AttentionArguments {
  at::Tensor query, key, value, mask;  // mask undefined: none
  at::Tensor out, lse, grad_out;       // backward only
  double dropout = 0;
  bool causal = false;
  double scale = 0;  // 0: default
};
// Copies references off the stack and leaves it as it is.
AttentionArguments ReadArguments(const ArgumentMap& map, const torch::jit::Stack& stack);

// nullptr when the kernels can do the call; else why not, as a literal for the coverage report.
const char* Unsupported(const AttentionArguments& a);
// The same for what only the backward has.
const char* UnsupportedGradient(const AttentionArguments& a);
CallSignature SignatureOf(const AttentionArguments& a);
// Hash of a few elements of the query, of its address-free contents. Cost: eight reads.
uint64_t Fingerprint(const at::Tensor& query);

// How the original lays its results out: dimensions from the outermost stride to the innermost.
struct ResultLayout {
  bool out_like_query = true;  // else BSHD
  std::array<int, 3> lse_order{0, 1, 2};
  std::array<int, 4> grad_order{0, 1, 2, 3};
};
// Learns it from a tiny call of the original. False when its results cannot be reproduced.
bool LearnLayout(const c10::SafeKernelFunction& forward, const c10::SafeKernelFunction& backward,
                 const ArgumentMap& forward_map, const ArgumentMap& backward_map, const HookRow& row,
                 ResultLayout* layout, std::string* error);

struct ForwardResult {
  at::Tensor out, lse;
};
// Runs our forward. STABILIZED keeps O's low half behind `out` in the same storage.
ForwardResult RunForward(const AttentionArguments& a, const HookRow& row, const ResultLayout& layout,
                         trimtab_attention_kind kind, trimtab_storage storage, trimtab_head_stats* stats);

// O's low half, if `out` carries it: FP32, contiguous [batch, heads, rows, columns].
const float* LowHalf(const at::Tensor& out);
// The output whose roundings preserve rowsum(dO*O), in a buffer of this thread that the next call on it overwrites.
at::Tensor PreserveDelta(const AttentionArguments& a, const float* low, trimtab_storage storage);
// Runs our backward from `out`.
std::array<at::Tensor, 3> RunBackward(const AttentionArguments& a, const HookRow& row, const ResultLayout& layout,
                                      const at::Tensor& out, trimtab_storage storage);

// Reads about `rows` query rows a head, other ones with every `offset`. stats: [heads], cleared by the caller.
void RunProbe(const AttentionArguments& a, const HookRow& row, const at::Tensor& out, trimtab_storage storage,
              uint32_t rows, uint64_t offset, std::span<trimtab_head_stats> stats);

// Compares our forward in `kind` with what the job computed (with exact arithmetic when the storage is emulated).
// detail: the two errors and their limits.
bool ShadowCompare(const AttentionArguments& a, const HookRow& row, const ResultLayout& layout,
                   const ForwardResult& actual, trimtab_attention_kind kind, trimtab_storage storage, double tolerance,
                   std::string* detail);

// trimtab_parallel_for over the host's intra-op pool.
void HostParallelFor(void* context, int64_t n, int64_t grain, void (*body)(void* arg, int64_t begin, int64_t end),
                     void* arg);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_ATTENTION_CALL_H_
