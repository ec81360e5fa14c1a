#include "agent/torch/hook_table.h"

#include <limits>

namespace trimtab::agent {

std::span<const HookRow> HookTable() {
  static constexpr HookRow kRows[] = {
      {
          "aten::_scaled_dot_product_flash_attention_for_cpu",
          "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
          c10::DispatchKey::CPU,
          {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", nullptr, nullptr, nullptr},
          {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "out", "logsumexp", "grad_out"},
          0,
          1,
          1,
          // This backend writes 0, and its backward needs a finite number; 0 in the kernels' interface means -infinity.
          std::numeric_limits<float>::min(),
      },
  };
  return kRows;
}

}  // namespace trimtab::agent
