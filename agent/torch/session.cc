#include "agent/torch/session.h"

#include <pthread.h>
#include <sched.h>

#include <cstdlib>
#include <mutex>
#include <utility>

namespace trimtab::agent {

void SpinLock::lock() noexcept {
  for (int spins = 0; held_.test_and_set(std::memory_order_acquire); ++spins) {
    if (spins >= 64) sched_yield();
  }
}

Session& Session::Get() {
  static Session* const session = new Session;
  return *session;
}

Session::Session() { pthread_atfork(nullptr, nullptr, &ForkedChild); }

// The child keeps the hooks' code but never measures, switches or writes: no lock is taken here or later.
void Session::ForkedChild() {
  Session& session = Get();
  session.forked_.store(true, std::memory_order_relaxed);
  session.running_.store(false, std::memory_order_relaxed);
  session.engaged_.store(false, std::memory_order_relaxed);
}

bool Session::Configure(const std::string& options_json, trimtab_parallel_for parallel_for, std::string* error) {
  const char* disable = std::getenv("TRIMTAB_DISABLE");
  if (disable != nullptr && *disable != '\0' && std::string(disable) != "0") {
    *error = "disabled by TRIMTAB_DISABLE";
    return false;
  }
  if (forked()) {
    *error = "this is a forked child of a process that had loaded trimtab; forked children are not measured";
    return false;
  }
  if (running()) {
    *error = "already started in this process";
    return false;
  }
  ShimOptions options;
  if (!ParseOptions(options_json, &options, error)) return false;
  std::lock_guard guard(lock_);
  options_ = std::move(options);
  parallel_for_ = parallel_for;
  step_ = options_.start_step;
  modes_.Fill(static_cast<uint8_t>(options_.mode));
  ledger_ = CallLedger();
  stats_ = StepStats();
  activations_.clear();
  coverage_ = Coverage();
  // The fault injector's kernels measure on the way: the plan is not thinned, so that its runs repeat exactly.
  sampling_.Configure(options_.sample_every_steps, options_.probe_rows, options_.overhead_budget,
                      options_.storage == TRIMTAB_STORE_SAME);
  latch_ = std::make_unique<SwitchLatch>(
      [this](uint64_t plan, trimtab_ack_state state, uint64_t step, const std::string& reason) {
        if (agent_ != nullptr) trimtab_ack(agent_, plan, state, step, reason.substr(0, 255).c_str());
      });
  ResetStep();
  loss_sum_ = 0;
  losses_ever_ = 0;
  last_boundary_nanos_ = 0;
  step_seconds_ = 0;
  modes_changed_ = explicit_steps_ = false;
  info_ = options_.info.is_object() ? options_.info : Json::Object();
  info_dirty_ = true;
  info_version_ = 0;
  info_layers_ = 0;
  reported_without_backward_ = reported_over_limit_ = 0;
  discoveries_.store(0, std::memory_order_relaxed);
  sampled_.store(sampling_.Sample(step_), std::memory_order_relaxed);
  if (options_.storage != TRIMTAB_STORE_SAME) {
    coverage_.Note("fault injector: attention is computed with P, V and O stored as " + options_.storage_name);
  }
  if (!options_.lazy && !OpenRingLocked(error)) return false;
  running_.store(true, std::memory_order_release);
  UpdateEngaged();
  return true;
}

bool Session::OpenRingLocked(std::string* error) {
  trimtab_options open = {};
  open.struct_size = sizeof open;
  open.ring_dir = options_.ring_dir.empty() ? nullptr : options_.ring_dir.c_str();
  open.run = options_.run.empty() ? nullptr : options_.run.c_str();
  open.rank = options_.rank;
  open.world_size = options_.world_size;
  open.local_rank = options_.local_rank;
  open.ring_bytes = options_.ring_bytes;
  open.act = options_.act;
  const trimtab_status status = trimtab_open(&open, &agent_);
  if (status == TRIMTAB_OK) {
    info_dirty_ = true;
    PublishInfo(true);
    return true;
  }
  agent_ = nullptr;
  *error = trimtab_last_error();
  if (error->empty()) *error = "the ring could not be opened (status " + std::to_string(status) + ")";
  return false;
}

bool Session::OpenRing(const std::string& json, std::string* error) {
  if (!running()) {
    *error = "not started";
    return false;
  }
  Json object;
  if (!Json::Parse(json.empty() ? "{}" : json, &object, error)) return false;
  std::lock_guard guard(lock_);
  if (const Json* info = object.Find("info")) MergeInfo(*info);
  if (agent_ != nullptr) {
    PublishInfo(true);
    return true;
  }
  auto whole = [&object](const char* key, uint32_t fallback) {
    const Json* value = object.Find(key);
    return value == nullptr ? fallback : static_cast<uint32_t>(value->AsInteger(fallback));
  };
  if (const Json* run = object.Find("run"); run != nullptr && run->is_string()) options_.run = run->AsString();
  options_.rank = whole("rank", options_.rank);
  options_.world_size = whole("world_size", options_.world_size);
  options_.local_rank = whole("local_rank", options_.local_rank);
  return OpenRingLocked(error);
}

void Session::Stop() {
  if (!running()) return;
  SpectralTracker released;  // destroyed outside of the lock: a weight's last reference may need Python's lock
  {
    std::lock_guard guard(lock_);
    running_.store(false, std::memory_order_release);
    engaged_.store(false, std::memory_order_relaxed);
    if (agent_ != nullptr) {
      PublishInfo(true);
      trimtab_close(agent_);
      agent_ = nullptr;
    }
    ledger_.Clear();
    std::swap(released, spectral_);
  }
}

void Session::UpdateEngaged() {
  bool engaged =
      options_.storage != TRIMTAB_STORE_SAME || latch_->shadow_pending() || modes_.other != TRIMTAB_MODE_NATIVE;
  for (const uint8_t mode : modes_.of_layer) engaged |= mode != TRIMTAB_MODE_NATIVE;
  engaged_.store(engaged && running(), std::memory_order_relaxed);
}

void Session::SetModes(std::span<const int64_t> modes) {
  if (!running()) return;
  std::lock_guard guard(lock_);
  const LayerModes before = modes_;
  auto valid = [](int64_t mode) { return mode >= TRIMTAB_MODE_NATIVE && mode <= TRIMTAB_MODE_PAPER; };
  if (modes.size() == 1 && valid(modes[0])) {  // one value means all layers
    modes_.Fill(static_cast<uint8_t>(modes[0]));
  } else {
    for (size_t i = 0; i < modes.size() && i < modes_.of_layer.size(); ++i) {
      if (valid(modes[i])) modes_.of_layer[i] = static_cast<uint8_t>(modes[i]);
    }
  }
  if (!(before == modes_)) info_dirty_ = true;
  UpdateEngaged();
}

}  // namespace trimtab::agent
