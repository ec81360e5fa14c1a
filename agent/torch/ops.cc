// torch.ops.trimtab.*: what Python calls, and the callback that sees the optimizer's step. None of it throws into the
// training loop except start, open_ring and inject_fault, whose caller asked.
//
// start(str options_json) -> str       installs the hooks; {"ok": bool, "error": str}. Options: agent/torch/options.h.
//                                      "lazy": true leaves the ring to open_ring.
// open_ring(str json) -> str           opens the ring (rank, world_size, local_rank, run, info); idempotent
// stop() -> ()                         original kernels are back, the ring is closed
// set_info(str json) -> ()             merges into RankInfo: layers by index, coverage.notes and .errors appended
// enter_layer(int layer) -> ()         layer of the next attention calls on this thread; -1: by call order
// observe_loss(Tensor root, float scale) -> ()    one root of a backward; the step reports the mean of root / scale
// observe_grad_norm(Tensor norm) -> ()
// observe_learning_rate(float lr) -> ()
// observe_activation(Tensor x, int layer) -> ()   no-op unless the step is sampled
// set_projection(int layer, str which, Tensor weight, int row_begin, int rows, int heads) -> ()
//                                      weight [out, in], any strides, kept until stop; which: q, k, v, o
// step_boundary(str source) -> bool    closes the step unless it is closed; true when modes changed
// end_step(float? loss, float? grad_norm, float? learning_rate) -> bool   the loop's own word: steps end here only
// set_modes(int[] modes) -> ()         one value: all layers
// status() -> str                      JSON
// sampled() -> bool                    whether the step in progress is sampled
// add_overhead(float seconds) -> ()    the caller's own cost, counted as the agent's
// inject_fault(str where) -> ()        tests: the next hook there throws
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "agent/torch/attention_call.h"
#include "agent/torch/hooks.h"
#include "agent/torch/json.h"
#include "agent/torch/session.h"

namespace trimtab::agent {
namespace {

constexpr float kActivationThreshold = 1e4F;
constexpr char kOptimizerStep[] = "Optimizer.step#";

std::atomic<at::CallbackHandle> callback{at::INVALID_CALLBACK_HANDLE};

// Runs body; an exception becomes a note of the coverage report.
template <typename F>
void Guarded(const char* what, F body) noexcept {
  try {
    body();
  } catch (const std::exception& e) {
    Session::Get().Note(std::string(what) + ": " + e.what());
  } catch (...) {
    Session::Get().Note(std::string(what) + ": unknown exception");
  }
}

std::string Answer(const std::string& error) {
  Json answer = Json::Object();
  answer["ok"] = error.empty();
  answer["error"] = error;
  return answer.Dump();
}

void OnUserScopeEnd(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (std::strncmp(function.name(), kOptimizerStep, sizeof kOptimizerStep - 1) != 0) return;
  Guarded("step boundary", [] { Session::Get().CloseStep(); });
}

void RemoveCallback() {
  const at::CallbackHandle handle = callback.exchange(at::INVALID_CALLBACK_HANDLE);
  if (handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle);
}

void Stop() {
  if (Session::Get().forked()) return;  // torch's registration lock may be held by a thread that does not exist here
  RemoveCallback();
  Session::Get().Stop();
  RemoveHooks();
}

std::string Start(const std::string& options) {
  std::string error;
  Session& session = Session::Get();
  if (!session.Configure(options, &HostParallelFor, &error)) return Answer(error);
  if (!InstallHooks(&error)) {
    Stop();
    return Answer("no attention operator could be hooked: " + error);
  }
  callback.store(at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); },
                                 &OnUserScopeEnd)
          .scopes({at::RecordScope::USER_SCOPE})));
  return Answer("");
}

std::string OpenRing(const std::string& json) {
  std::string error;
  return Answer(Session::Get().OpenRing(json, &error) ? "" : error);
}

// The value of a one-element CPU tensor; nothing, with a note, for others: reading them would make the job wait.
std::optional<double> Scalar(const char* what, const at::Tensor& t) {
  if (!t.defined() || t.numel() != 1 || !t.device().is_cpu()) {
    Session::Get().Note(std::string(what) + ": not a scalar on the CPU, not read");
    return std::nullopt;
  }
  return t.detach().item().toDouble();
}

void ObserveLoss(const at::Tensor& root, double scale) {
  if (!Session::Get().running()) return;
  Guarded("loss", [&] {
    if (const auto value = Scalar("loss", root)) Session::Get().ObserveLoss(*value, scale);
  });
}

void ObserveGradNorm(const at::Tensor& norm) {
  if (!Session::Get().running()) return;
  Guarded("gradient norm", [&] {
    if (const auto value = Scalar("gradient norm", norm)) Session::Get().ObserveGradNorm(*value);
  });
}

std::optional<trimtab_dtype> Dtype(const at::Tensor& t) {
  switch (t.scalar_type()) {
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

void ObserveActivation(const at::Tensor& x, int64_t layer) {
  Session& session = Session::Get();
  if (!session.running() || !session.sampled()) return;
  Guarded("activations", [&] {
    const auto begin = std::chrono::steady_clock::now();
    // Order does not matter to the statistics, so that any dense layout is read as it lies.
    if (!x.defined() || !x.device().is_cpu() || x.layout() != at::kStrided || !Dtype(x) ||
        !x.is_non_overlapping_and_dense()) {
      session.Note("activations: some are not dense float32, bfloat16 or float16 CPU tensors, not read");
      return;
    }
    trimtab_activation_stats stats = {};
    if (trimtab_activation(*Dtype(x), x.const_data_ptr(), x.numel(), kActivationThreshold, &stats) !=
        TRIMTAB_KERNEL_OK) {
      session.Note(std::string("activations: ") + trimtab_kernel_error());
      return;
    }
    session.ObserveActivation(static_cast<int>(layer), stats);
    session.AddOverhead(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  });
}

void SetProjection(int64_t layer, const std::string& which, const at::Tensor& weight, int64_t row_begin, int64_t rows,
                   int64_t heads) {
  if (!Session::Get().running()) return;
  Guarded("projection", [&] {
    Session& session = Session::Get();
    if (!weight.defined() || weight.dim() != 2 || !weight.device().is_cpu() || !Dtype(weight)) {
      session.Note("projections: some are not float32, bfloat16 or float16 CPU matrices, not read");
      return;
    }
    if (row_begin < 0 || rows <= 0 || rows > weight.size(0) - row_begin) {
      session.Note("projections: rows out of the weight's range");
      return;
    }
    // An alias of our own: no Python object hangs on it, and it follows what the optimizer writes.
    at::Tensor alias = weight.detach();
    SpectralTracker::Reader reader = [alias, row_begin, rows](ProjectionView* view) {
      const int64_t last = (alias.size(0) - 1) * alias.stride(0) + (alias.size(1) - 1) * alias.stride(1);
      const auto bytes = static_cast<int64_t>(alias.storage().nbytes());
      if ((alias.storage_offset() + last + 1) * alias.element_size() > bytes) return false;  // sharded away just now
      view->dtype = *Dtype(alias);
      view->data =
          static_cast<const char*>(alias.const_data_ptr()) + row_begin * alias.stride(0) * alias.element_size();
      view->rows = rows;
      view->columns = alias.size(1);
      view->row_stride = alias.stride(0);
      view->column_stride = alias.stride(1);
      return true;
    };
    ProjectionView shape;
    std::string error;
    if (!reader(&shape)) {
      session.Note("projections: a weight is not in memory, not read");
    } else if (!session.SetProjection(static_cast<int>(layer), which, shape, static_cast<int>(heads), std::move(reader),
                                      &error)) {
      session.Note("projections: " + error);
    }
  });
}

void SetModes(at::IntArrayRef modes) { Session::Get().SetModes(std::span(modes.data(), modes.size())); }

void Fault(const std::string& where) {
  TORCH_CHECK(InjectFault(where), "inject_fault: forward, forward_after, backward or backward_after, not ", where);
}

}  // namespace
}  // namespace trimtab::agent

TORCH_LIBRARY(trimtab, m) {
  using namespace trimtab::agent;  // NOLINT(google-build-using-namespace): the schema table below
  m.def("start(str options_json) -> str", [](const std::string& options) { return Start(options); });
  m.def("open_ring(str json) -> str", [](const std::string& json) { return OpenRing(json); });
  m.def("stop() -> ()", [] { Stop(); });
  m.def("set_info(str json) -> ()", [](const std::string& json) { Session::Get().SetInfo(json); });
  m.def("enter_layer(int layer) -> ()", [](int64_t layer) { EnterLayer(layer); });
  m.def("observe_loss(Tensor root, float scale) -> ()", &ObserveLoss);
  m.def("observe_grad_norm(Tensor norm) -> ()", &ObserveGradNorm);
  m.def("observe_learning_rate(float lr) -> ()", [](double rate) { Session::Get().ObserveLearningRate(rate); });
  m.def("observe_activation(Tensor x, int layer) -> ()", &ObserveActivation);
  m.def("set_projection(int layer, str which, Tensor weight, int row_begin, int rows, int heads) -> ()",
        [](int64_t layer, const std::string& which, const at::Tensor& weight, int64_t row_begin, int64_t rows,
           int64_t heads) { SetProjection(layer, which, weight, row_begin, rows, heads); });
  m.def("step_boundary(str source) -> bool", [](const std::string&) { return Session::Get().CloseStep(); });
  m.def("end_step(float? loss, float? grad_norm, float? learning_rate) -> bool",
        [](std::optional<double> loss, std::optional<double> grad_norm, std::optional<double> learning_rate) {
          return Session::Get().EndStep({loss, grad_norm, learning_rate});
        });
  m.def("set_modes(int[] modes) -> ()", [](at::IntArrayRef modes) { SetModes(modes); });
  m.def("status() -> str", [] { return Session::Get().Status(); });
  m.def("sampled() -> bool", [] { return Session::Get().running() && Session::Get().sampled(); });
  m.def("add_overhead(float seconds) -> ()", [](double seconds) { Session::Get().AddOverhead(seconds); });
  m.def("inject_fault(str where) -> ()", [](const std::string& where) { Fault(where); });
}
