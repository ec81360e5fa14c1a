// The operators that are hooked: one row each. A new backend is a new pair of rows.
#ifndef TRIMTAB_AGENT_TORCH_HOOK_TABLE_H_
#define TRIMTAB_AGENT_TORCH_HOOK_TABLE_H_

#include <c10/core/DispatchKey.h>

#include <span>

namespace trimtab::agent {

// Names of arguments in the operator's schema (positions differ between torch versions); nullptr: it has none.
struct HookArguments {
  const char* query;
  const char* key;
  const char* value;
  const char* mask;
  const char* dropout;
  const char* causal;
  const char* scale;
  const char* out;  // backward only, as the two below
  const char* lse;
  const char* grad_out;
};

// A forward and its backward. Tensors are [batch, heads, rows, columns] in any strides. Results are taken by position:
// the forward's `out_result` and `lse_result`, the backward's first three.
struct HookRow {
  const char* forward;  // qualified name, overload ""
  const char* backward;
  c10::DispatchKey key;
  HookArguments forward_arguments, backward_arguments;
  int out_result, lse_result;
  int causal_alignment;  // trimtab_attention.causal when the call is causal: 1 top-left, 2 bottom-right
  float empty_lse;       // what the backend writes for a row without a visible key
};

std::span<const HookRow> HookTable();

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_HOOK_TABLE_H_
