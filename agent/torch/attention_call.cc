// Reading a call: schema positions, arguments, what is supported, signature, layout of the original's results.
#include "agent/torch/attention_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace trimtab::agent {
namespace {

std::optional<trimtab_dtype> DtypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return TRIMTAB_F32;
    case at::kBFloat16:
      return TRIMTAB_BF16;
    case at::kHalf:
      return TRIMTAB_F16;
    default:
      return std::nullopt;
  }
}

bool PlainCpu(const at::Tensor& t) {
  return t.device().is_cpu() && t.layout() == at::kStrided && !t.is_nested() && t.has_storage() &&
         !t.key_set().has(c10::DispatchKey::Python) && !t.key_set().has(c10::DispatchKey::Functionalize) &&
         !t.is_neg() && !t.is_conj();
}

bool MaskFits(const AttentionArguments& a) {
  const auto& mask = a.mask;
  if (mask.dim() != 2 && mask.dim() != 4) return false;
  const int64_t want[] = {a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)};
  for (int64_t d = 0; d < mask.dim(); ++d) {
    if (mask.size(mask.dim() - 1 - d) != 1 && mask.size(mask.dim() - 1 - d) != want[3 - d]) return false;
  }
  return true;
}

}  // namespace

bool MapArguments(const c10::FunctionSchema& schema, const HookArguments& names, ArgumentMap* map, std::string* error) {
  struct Named {
    const char* name;
    int ArgumentMap::*position;
  };
  const Named wanted[] = {{names.query, &ArgumentMap::query},     {names.key, &ArgumentMap::key},
                          {names.value, &ArgumentMap::value},     {names.mask, &ArgumentMap::mask},
                          {names.dropout, &ArgumentMap::dropout}, {names.causal, &ArgumentMap::causal},
                          {names.scale, &ArgumentMap::scale},     {names.out, &ArgumentMap::out},
                          {names.lse, &ArgumentMap::lse},         {names.grad_out, &ArgumentMap::grad_out}};
  *map = {};
  map->count = static_cast<int>(schema.arguments().size());
  int found = 0;
  for (const Named& w : wanted) {
    if (w.name == nullptr) continue;
    for (int i = 0; i < map->count; ++i) {
      if (schema.arguments()[i].name() == w.name) map->*w.position = i;
    }
    if (map->*w.position < 0) {
      *error = schema.name() + " has no argument " + w.name;
      return false;
    }
    ++found;
  }
  if (found != map->count) {
    *error = schema.name() + " has arguments that are not understood";
    return false;
  }
  return true;
}

AttentionArguments ReadArguments(const ArgumentMap& map, const torch::jit::Stack& stack) {
  const c10::IValue* arguments = stack.data() + (stack.size() - map.count);
  auto tensor = [&](int i) { return i < 0 || arguments[i].isNone() ? at::Tensor() : arguments[i].toTensor(); };
  AttentionArguments a;
  a.query = tensor(map.query);
  a.key = tensor(map.key);
  a.value = tensor(map.value);
  a.mask = tensor(map.mask);
  a.out = tensor(map.out);
  a.lse = tensor(map.lse);
  a.grad_out = tensor(map.grad_out);
  if (map.dropout >= 0) a.dropout = arguments[map.dropout].toDouble();
  if (map.causal >= 0) a.causal = arguments[map.causal].toBool();
  if (map.scale >= 0 && !arguments[map.scale].isNone()) {
    a.scale = arguments[map.scale].toDouble();
    if (a.scale == 0) a.scale = std::numeric_limits<float>::min();  // 0 means the default to the kernels
  }
  return a;
}

const char* Unsupported(const AttentionArguments& a) {
  for (const at::Tensor* t : {&a.query, &a.key, &a.value}) {
    if (!t->defined()) return "undefined tensor";
    if (!PlainCpu(*t)) return "not a plain dense CPU tensor";
    if (t->dim() != 4) return "not four dimensions";
  }
  if (!DtypeOf(a.query.scalar_type())) return "dtype other than float32, bfloat16, float16";
  if (a.key.scalar_type() != a.query.scalar_type() || a.value.scalar_type() != a.query.scalar_type()) {
    return "mixed dtypes";
  }
  if (a.dropout != 0) return "dropout";
  const auto q = a.query.sizes(), k = a.key.sizes(), v = a.value.sizes();
  if (a.query.numel() == 0 || a.key.numel() == 0 || a.value.numel() == 0) return "empty tensor";
  if (k[0] != q[0] || v[0] != q[0] || k[3] != q[3] || v[1] != k[1] || v[2] != k[2] || q[1] % k[1] != 0) {
    return "shapes that do not fit together";
  }
  if (v[3] != q[3]) return "value size differs from head size";
  if (a.mask.defined()) {
    if (!PlainCpu(a.mask)) return "mask is not a plain dense CPU tensor";
    if (a.mask.requires_grad()) return "mask that needs a gradient";
    if (a.mask.scalar_type() != at::kBool && !DtypeOf(a.mask.scalar_type())) return "mask dtype";
    if (!MaskFits(a)) return "mask shape";
  }
  return nullptr;
}

const char* UnsupportedGradient(const AttentionArguments& a) {
  for (const at::Tensor* t : {&a.out, &a.grad_out, &a.lse}) {
    if (!t->defined()) return "undefined tensor";
    if (!PlainCpu(*t)) return "not a plain dense CPU tensor";
  }
  if (a.out.sizes() != a.query.sizes() || a.grad_out.sizes() != a.out.sizes() || a.lse.dim() != 3 ||
      a.lse.numel() != a.query.size(0) * a.query.size(1) * a.query.size(2)) {
    return "shapes that do not fit together";
  }
  if (a.out.scalar_type() != a.query.scalar_type() || a.grad_out.scalar_type() != a.out.scalar_type()) {
    return "mixed dtypes";
  }
  return a.lse.scalar_type() == at::kFloat ? nullptr : "log-sum-exp is not float32";
}

CallSignature SignatureOf(const AttentionArguments& a) {
  CallSignature s;
  s.heads = static_cast<int32_t>(a.query.size(1));
  s.kv_heads = static_cast<int32_t>(a.key.size(1));
  s.head_dim = static_cast<int32_t>(a.query.size(3));
  s.value_dim = static_cast<int32_t>(a.value.size(3));
  s.dtype = *DtypeOf(a.query.scalar_type());
  s.causal = a.causal;
  return s;
}

uint64_t Fingerprint(const at::Tensor& query) {
  const auto* data = static_cast<const char*>(query.const_data_ptr());
  const auto sizes = query.sizes(), strides = query.strides();
  const size_t bytes = query.element_size();
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (uint64_t i = 0; i < 8; ++i) {
    int64_t at = 0;
    for (int d = 0; d < 4; ++d) {
      // Spread over each dimension by an odd multiplier of its own; the last sample is the last element.
      const uint64_t n = static_cast<uint64_t>(sizes[d]);
      at += static_cast<int64_t>(i == 7 ? n - 1 : (i * (2 * d + 3) * 0x9E3779B1ull >> 3) % n) * strides[d];
    }
    uint32_t bits = 0;
    std::memcpy(&bits, data + at * static_cast<int64_t>(bytes), std::min<size_t>(bytes, sizeof bits));
    hash = (hash ^ bits) * 0xFF51AFD7ED558CCDull;
    hash ^= hash >> 29;
  }
  for (int d = 0; d < 3; ++d) hash = (hash ^ static_cast<uint64_t>(sizes[d])) * 0xC4CEB9FE1A85EC53ull;
  return hash;
}

// --- layout of the original's results ----------------------------------------------------------------------------

namespace {

// Dimensions from the outermost stride to the innermost; false when the tensor is not dense.
template <size_t N>
bool OrderOf(const at::Tensor& t, std::array<int, N>* order) {
  if (t.dim() != static_cast<int64_t>(N) || !t.is_non_overlapping_and_dense()) return false;
  std::iota(order->begin(), order->end(), 0);
  std::stable_sort(order->begin(), order->end(), [&](int x, int y) { return t.stride(x) > t.stride(y); });
  return true;
}

torch::jit::Stack StackOf(const ArgumentMap& map, const AttentionArguments& a) {
  torch::jit::Stack stack(map.count);
  auto set = [&](int i, c10::IValue value) {
    if (i >= 0) stack[i] = std::move(value);
  };
  set(map.query, a.query);
  set(map.key, a.key);
  set(map.value, a.value);
  set(map.dropout, a.dropout);
  set(map.causal, a.causal);
  set(map.out, a.out);
  set(map.lse, a.lse);
  set(map.grad_out, a.grad_out);
  return stack;
}

}  // namespace

bool LearnLayout(const c10::SafeKernelFunction& forward, const c10::SafeKernelFunction& backward,
                 const ArgumentMap& forward_map, const ArgumentMap& backward_map, const HookRow& row,
                 ResultLayout* layout, std::string* error) {
  at::AutoDispatchBelowADInplaceOrView below;
  const c10::DispatchKeySet keys(row.key);
  constexpr int64_t kShape[] = {2, 3, 5, 8};  // all different, so that strides tell the dimensions apart
  constexpr int64_t kBshd[] = {120, 8, 24, 1};
  AttentionArguments a;
  a.causal = false;
  bool like_query[2] = {};
  for (const bool bshd : {false, true}) {
    a.query = bshd ? at::Tensor(at::detail::empty_strided_cpu(kShape, kBshd, at::kFloat))
                   : at::Tensor(at::detail::empty_cpu(kShape, at::kFloat));
    a.query.zero_();
    a.key = a.value = a.query;
    torch::jit::Stack stack = StackOf(forward_map, a);
    forward.callBoxed(forward.opHandle(), keys, &stack);
    a.out = stack.at(row.out_result).toTensor();
    a.lse = stack.at(row.lse_result).toTensor();
    like_query[bshd] = a.out.strides() == a.query.strides();
    if (!like_query[bshd] && a.out.strides() != at::IntArrayRef(kBshd)) {
      *error = "output strides are not known";
      return false;
    }
  }
  layout->out_like_query = like_query[0];
  if (!OrderOf(a.lse, &layout->lse_order) || a.lse.scalar_type() != at::kFloat) {
    *error = "log-sum-exp layout is not known";
    return false;
  }
  a.grad_out = a.out;
  torch::jit::Stack stack = StackOf(backward_map, a);
  backward.callBoxed(backward.opHandle(), keys, &stack);
  for (int i = 0; i < 3; ++i) {
    std::array<int, 4> order;
    if (!OrderOf(stack.at(i).toTensor(), &order) || (i > 0 && order != layout->grad_order)) {
      *error = "gradient layout is not known";
      return false;
    }
    layout->grad_order = order;
  }
  return true;
}

void HostParallelFor(void* /*context*/, int64_t n, int64_t grain, void (*body)(void* arg, int64_t begin, int64_t end),
                     void* arg) {
  at::parallel_for(0, n, grain, [body, arg](int64_t begin, int64_t end) { body(arg, begin, end); });
}

}  // namespace trimtab::agent
