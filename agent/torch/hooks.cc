// Forward and backward hooks. The rule of this file: whatever goes wrong on our side, the original kernel runs on the
// stack as it came, once, and its own errors pass through.
#include "agent/torch/hooks.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "agent/torch/attention_call.h"
#include "agent/torch/session.h"

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 9)
#error "trimtab needs torch 2.9 or newer (OperatorHandle::getComputedKernelForDispatchKey)"
#endif

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();  // torch/csrc/autograd/graph_task.h pulls in the whole engine
}

namespace trimtab::agent {
namespace {

thread_local int64_t current_layer = -1;

enum class Fault : int { kNone, kForward, kForwardAfter, kBackward, kBackwardAfter };
std::atomic<Fault> fault{Fault::kNone};

void MaybeFail(Fault where) {
  if (fault.load(std::memory_order_relaxed) != where) return;
  fault.store(Fault::kNone, std::memory_order_relaxed);
  throw std::runtime_error("injected fault");
}

// Sums the time between Start and Stop.
class Stopwatch {
 public:
  Stopwatch() : begin_(Now()) {}
  void Stop() { seconds_ += std::chrono::duration<double>(Now() - begin_).count(); }
  void Start() { begin_ = Now(); }
  double seconds() const { return seconds_; }

 private:
  static std::chrono::steady_clock::time_point Now() { return std::chrono::steady_clock::now(); }
  std::chrono::steady_clock::time_point begin_;
  double seconds_ = 0;
};

// One row of the table, bound to this process's torch.
struct HookPair {
  const HookRow* row = nullptr;
  ArgumentMap forward_map, backward_map;
  std::optional<c10::SafeKernelFunction> forward, backward;
  ResultLayout layout;
  std::atomic<bool> broken{false};

  void Break(const char* op, const char* what) {
    broken.store(true, std::memory_order_relaxed);
    Session::Get().HookFailed(op, what);
  }
};

trimtab_attention_kind KindOf(uint32_t mode) {
  if (mode == TRIMTAB_MODE_STABILIZED) return TRIMTAB_ATTENTION_STABILIZED;
  return mode == TRIMTAB_MODE_PAPER ? TRIMTAB_ATTENTION_PAPER : TRIMTAB_ATTENTION_STANDARD;
}
bool IsOurs(uint32_t mode) { return mode == TRIMTAB_MODE_STABILIZED || mode == TRIMTAB_MODE_PAPER; }

// Why a forward cannot have a backward; nullptr when it can. Compiled graphs and reentrant checkpointing run their
// training forwards with grad mode off, inside an autograd.Function: there, forward-mode AD is off too, which
// torch.no_grad() alone does not do.
const char* EvaluationReason(const AttentionArguments& a, bool in_backward) {
  if (c10::InferenceMode::is_enabled()) return "inference mode";
  if (in_backward) return nullptr;
  auto& state = c10::AutogradState::get_tls_state();
  if (!state.get_grad_mode()) return state.get_fw_grad_mode() ? "grad mode off" : nullptr;
  const bool needed = a.query.requires_grad() || a.key.requires_grad() || a.value.requires_grad();
  return needed ? nullptr : "no gradient needed";
}

const void* StorageOf(const at::Tensor& t) { return t.defined() ? t.storage().data() : nullptr; }

// Asks Python which layer calls; -1 when nobody knows. Takes Python's lock: never call it with one of ours.
int64_t DiscoverLayer(Session& session) {
  if (!session.WantsDiscovery()) return -1;
  const auto op = c10::Dispatcher::singleton().findSchema({"trimtab::discover_layer", ""});
  if (!op) {
    session.StopDiscovery();
    return -1;
  }
  static std::atomic<int64_t> calls{0};
  torch::jit::Stack stack{calls.fetch_add(1, std::memory_order_relaxed)};
  op->callBoxed(&stack);
  const int64_t layer = stack.at(0).toInt();
  if (layer == -2) session.StopDiscovery();
  return layer < 0 ? -1 : layer;
}

class ForwardHook final : public c10::OperatorKernel {
 public:
  explicit ForwardHook(std::shared_ptr<HookPair> pair) : pair_(std::move(pair)), session_(Session::Get()) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (!session_.engaged() || pair_->broken.load(std::memory_order_relaxed)) {
      pair_->forward->callBoxed(op, keys, stack);
      return;
    }
    Call call;
    const bool replaced = Before(*stack, &call);
    if (replaced) {
      torch::jit::drop(*stack, pair_->forward_map.count);
      torch::jit::push(*stack, call.result.out, call.result.lse);
    } else {
      pair_->forward->callBoxed(op, keys, stack);
    }
    After(*stack, replaced, &call);
  }

 private:
  struct Call {
    Stopwatch watch;
    AttentionArguments arguments;
    const char* passed = nullptr;  // reason
    bool training = true;
    ForwardPlan plan;
    ForwardResult result;
    std::span<const trimtab_head_stats> stats;  // into this thread's buffer
  };

  // True when the results are ours, in call->result. Never throws, never changes the stack.
  bool Before(const torch::jit::Stack& stack, Call* call) noexcept {
    const char* name = pair_->row->forward;
    try {
      MaybeFail(Fault::kForward);
      const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
      call->arguments = ReadArguments(pair_->forward_map, stack);
      const AttentionArguments& a = call->arguments;
      if ((call->passed = EvaluationReason(a, in_backward)) != nullptr) {
        call->training = false;
        return false;
      }
      if ((call->passed = Unsupported(a)) != nullptr) return false;
      ForwardCall forward = {name, SignatureOf(a), static_cast<int>(current_layer), Fingerprint(a.query)};
      if (current_layer < 0 && !in_backward) forward.explicit_layer = static_cast<int>(DiscoverLayer(session_));
      call->plan = session_.BeginForward(forward, in_backward);
      const trimtab_storage storage = session_.storage();
      const uint32_t mode = call->plan.mode;
      if (call->plan.record < 0 || (storage == TRIMTAB_STORE_SAME && !IsOurs(mode))) {
        call->watch.Stop();
        return false;
      }
      // The fault injector's forward measures on the way; otherwise the probe does it at the backward.
      const bool measure = call->plan.measure && storage != TRIMTAB_STORE_SAME;
      thread_local std::vector<trimtab_head_stats> stats;
      if (measure) {
        stats.resize(a.query.size(1));
        ClearHeadStats(stats);
        call->stats = stats;
      }
      call->watch.Stop();
      call->result = RunForward(a, *pair_->row, pair_->layout, KindOf(mode), storage, measure ? stats.data() : nullptr);
      return true;
    } catch (const std::exception& e) {
      pair_->Break(name, e.what());
    } catch (...) {
      pair_->Break(name, "unknown exception");
    }
    call->plan.record = -1;
    call->passed = "hook failed";
    return false;
  }

  void After(const torch::jit::Stack& stack, bool replaced, Call* call) noexcept {
    const char* name = pair_->row->forward;
    try {
      const c10::IValue* results = stack.data() + (stack.size() - 2);
      const at::Tensor& out = results[pair_->row->out_result].toTensor();
      if (call->plan.record < 0) {
        session_.PassBy(name, call->passed != nullptr ? call->passed : "not recorded", StorageOf(out), call->training);
        return;
      }
      call->watch.Start();
      MaybeFail(Fault::kForwardAfter);
      if (call->plan.shadow) {
        if (!replaced) call->result = {out, results[pair_->row->lse_result].toTensor()};
        std::string detail;
        const bool good =
            ShadowCompare(call->arguments, *pair_->row, pair_->layout, call->result, KindOf(call->plan.shadow_mode),
                          session_.storage(), session_.shadow_tolerance(), &detail);
        session_.ReportShadow(call->plan.layer, good, detail);
      }
      call->watch.Stop();
      session_.EndForward(call->plan, StorageOf(out), call->stats, call->watch.seconds());
    } catch (const std::exception& e) {
      pair_->Break(name, e.what());
    } catch (...) {
      pair_->Break(name, "unknown exception");
    }
  }

  std::shared_ptr<HookPair> pair_;
  Session& session_;
};

class BackwardHook final : public c10::OperatorKernel {
 public:
  explicit BackwardHook(std::shared_ptr<HookPair> pair) : pair_(std::move(pair)), session_(Session::Get()) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (!session_.engaged() || pair_->broken.load(std::memory_order_relaxed)) {
      pair_->backward->callBoxed(op, keys, stack);
      return;
    }
    Call call;
    if (Before(*stack, &call)) {
      torch::jit::drop(*stack, pair_->backward_map.count);
      torch::jit::push(*stack, call.grads[0], call.grads[1], call.grads[2]);
    } else {
      if (call.preserved.defined()) {  // the original, fed with the output that preserves delta
        (*stack)[stack->size() - pair_->backward_map.count + pair_->backward_map.out] = call.preserved;
      }
      pair_->backward->callBoxed(op, keys, stack);
    }
    if (call.plan.record >= 0) After(&call);
  }

 private:
  struct Call {
    Stopwatch watch;
    AttentionArguments arguments;
    BackwardPlan plan;
    at::Tensor preserved;
    std::array<at::Tensor, 3> grads;
  };

  // True when the gradients are ours, in call->grads. Never throws, never changes the stack.
  bool Before(const torch::jit::Stack& stack, Call* call) noexcept {
    const char* name = pair_->row->backward;
    try {
      MaybeFail(Fault::kBackward);
      call->arguments = ReadArguments(pair_->backward_map, stack);
      const AttentionArguments& a = call->arguments;
      const char* passed = Unsupported(a);
      if (passed == nullptr) passed = UnsupportedGradient(a);
      if (passed != nullptr) {
        session_.PassBy(name, passed, nullptr, true);
        return false;
      }
      call->plan = session_.BeginBackward(name, StorageOf(a.out));
      const trimtab_storage storage = session_.storage();
      at::Tensor preserved;
      if (const float* low = LowHalf(a.out)) {
        preserved = PreserveDelta(a, low, storage);
      } else if (call->plan.mode == TRIMTAB_MODE_STABILIZED) {
        session_.Note("the low half of some outputs was lost on the way to the backward");
      }
      call->watch.Stop();
      if (storage != TRIMTAB_STORE_SAME) {
        call->grads = RunBackward(a, *pair_->row, pair_->layout, preserved.defined() ? preserved : a.out, storage);
      }
      call->preserved = std::move(preserved);
      return storage != TRIMTAB_STORE_SAME;
    } catch (const std::exception& e) {
      pair_->Break(name, e.what());
    } catch (...) {
      pair_->Break(name, "unknown exception");
    }
    call->plan.record = -1;
    return false;
  }

  void After(Call* call) noexcept {
    const char* name = pair_->row->backward;
    try {
      call->watch.Start();
      MaybeFail(Fault::kBackwardAfter);
      thread_local std::vector<trimtab_head_stats> stats;
      stats.clear();
      const AttentionArguments& a = call->arguments;
      if (call->plan.probe) {
        stats.resize(a.query.size(1));
        ClearHeadStats(stats);
        RunProbe(a, *pair_->row, call->preserved.defined() ? call->preserved : a.out, session_.storage(),
                 call->plan.rows, call->plan.offset, stats);
      }
      call->watch.Stop();
      session_.EndBackward(call->plan, stats, call->watch.seconds());
    } catch (const std::exception& e) {
      pair_->Break(name, e.what());
    } catch (...) {
      pair_->Break(name, "unknown exception");
    }
  }

  std::shared_ptr<HookPair> pair_;
  Session& session_;
};

// Drops the warning that a kernel is overridden: it is what we are here for, and stop() undoes it.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// The handles whose destruction brings the original kernels back.
std::vector<std::unique_ptr<torch::Library>>& Libraries() {
  static auto* const libraries = new std::vector<std::unique_ptr<torch::Library>>;  // outlives torch's own teardown
  return *libraries;
}

bool InstallRow(const HookRow& row, std::string* error) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto forward = dispatcher.findSchema({row.forward, ""});
  const auto backward = dispatcher.findSchema({row.backward, ""});
  if (!forward || !backward) {
    *error = std::string(row.forward) + " does not exist in this torch";
    return false;
  }
  auto pair = std::make_shared<HookPair>();
  pair->row = &row;
  if (!MapArguments(forward->schema(), row.forward_arguments, &pair->forward_map, error) ||
      !MapArguments(backward->schema(), row.backward_arguments, &pair->backward_map, error)) {
    return false;
  }
  if (forward->schema().returns().size() != 2 || backward->schema().returns().size() != 3) {
    *error = std::string(row.forward) + " has results that are not understood";
    return false;
  }
  pair->forward.emplace(forward->getComputedKernelForDispatchKey(row.key));
  pair->backward.emplace(backward->getComputedKernelForDispatchKey(row.key));
  if (!LearnLayout(*pair->forward, *pair->backward, pair->forward_map, pair->backward_map, row, &pair->layout, error)) {
    return false;
  }
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard guard(&silence);
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", row.key, __FILE__, __LINE__);
  library->impl(row.forward, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ForwardHook>(pair)));
  library->impl(row.backward, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BackwardHook>(pair)));
  Libraries().push_back(std::move(library));
  Session::Get().HookInstalled(row.forward);
  Session::Get().HookInstalled(row.backward);
  return true;
}

}  // namespace

bool InstallHooks(std::string* error) {
  for (const HookRow& row : HookTable()) {
    std::string why;
    try {
      if (InstallRow(row, &why)) continue;
    } catch (const std::exception& e) {
      why = e.what();
    }
    Session::Get().HookFailed(row.forward, why);
    *error += (error->empty() ? "" : "; ") + why;
  }
  return !Libraries().empty();
}

void RemoveHooks() { Libraries().clear(); }

void EnterLayer(int64_t layer) { current_layer = layer; }

bool InjectFault(const std::string& where) {
  static constexpr std::pair<const char*, Fault> kPlaces[] = {{"forward", Fault::kForward},
                                                              {"forward_after", Fault::kForwardAfter},
                                                              {"backward", Fault::kBackward},
                                                              {"backward_after", Fault::kBackwardAfter}};
  for (const auto& [name, place] : kPlaces) {
    if (where == name) {
      fault.store(place, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace trimtab::agent
