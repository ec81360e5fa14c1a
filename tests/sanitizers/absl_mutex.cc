// Shows ThreadSanitizer the absl::Mutex of a distribution's Abseil, which is built without its annotations: unseen,
// every value that such a mutex guards would look like a race. Linked into every executable of the tsan preset, these
// definitions stand before those of the shared library, also for gRPC's calls, and pass each call on to them between
// the annotations that Abseil itself makes when it is built with TSan (<sanitizer/tsan_interface.h>).
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"

// Mangled name of a member function of absl::Mutex or absl::CondVar.
#define TRIMTAB_TEXT_(x) #x
#define TRIMTAB_TEXT(x) TRIMTAB_TEXT_(x)
#define TRIMTAB_ABSL TRIMTAB_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME)

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

constexpr unsigned kRead = __tsan_mutex_read_lock;
constexpr unsigned kTry = __tsan_mutex_try_lock;

// `member`: mangled from the class name on, where S0_ is Abseil's inline namespace. Looked up once; no guarded static,
// for these definitions are linked into programs in C, too.
template <class Function>
Function* Real(const char* member, std::atomic<void*>* found) {
  if (void* known = found->load(std::memory_order_relaxed)) return reinterpret_cast<Function*>(known);
  char name[256];
  std::snprintf(name, sizeof(name), "_ZN4absl%zu%s%s", sizeof(TRIMTAB_ABSL) - 1, TRIMTAB_ABSL, member);
  void* address = dlsym(RTLD_NEXT, name);
  if (address == nullptr) {
    std::fprintf(stderr, "absl_mutex.cc: this Abseil has no %s\n", name);
    std::abort();
  }
  found->store(address, std::memory_order_relaxed);
  return reinterpret_cast<Function*>(address);
}

// Inside a call: those that the library makes of itself, with its own lock at hand, pass through unannotated.
thread_local bool inside = false;

template <class Call>
auto Inside(Call call) {
  inside = true;
  const auto result = call();
  inside = false;
  return result;
}

// The mutex is given away and taken back inside `wait`, which also reads what it guards: TSan looks away until the end.
template <class Wait>
auto Waiting(Mutex* mutex, Wait wait) {
  if (inside) return wait();
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  __tsan_mutex_pre_lock(mutex, 0);
  const auto result = Inside(wait);
  __tsan_mutex_post_lock(mutex, 0, 0);
  return result;
}

template <class Lock>
auto Locking(Mutex* mutex, unsigned flags, Lock lock) {
  if (inside) return lock();
  __tsan_mutex_pre_lock(mutex, flags);
  const auto result = Inside(lock);
  const bool failed = (flags & kTry) != 0 && !result;
  __tsan_mutex_post_lock(mutex, failed ? flags | __tsan_mutex_try_lock_failed : flags, 0);
  return result;
}

template <class Unlock>
void Unlocking(Mutex* mutex, unsigned flags, Unlock unlock) {
  if (inside) return void(unlock());
  __tsan_mutex_pre_unlock(mutex, flags);
  Inside(unlock);
  __tsan_mutex_post_unlock(mutex, flags);
}

}  // namespace

#define TRIMTAB_REAL(member, Result, ...)   \
  static std::atomic<void*> found{nullptr}; \
  Result (*const real)(__VA_ARGS__) = Real<Result(__VA_ARGS__)>(member, &found)

void Mutex::Lock() {
  TRIMTAB_REAL("5Mutex4LockEv", void, Mutex*);
  Locking(this, 0, [&] { return real(this), true; });
}

void Mutex::ReaderLock() {
  TRIMTAB_REAL("5Mutex10ReaderLockEv", void, Mutex*);
  Locking(this, kRead, [&] { return real(this), true; });
}

bool Mutex::TryLock() {
  TRIMTAB_REAL("5Mutex7TryLockEv", bool, Mutex*);
  return Locking(this, kTry, [&] { return real(this); });
}

bool Mutex::ReaderTryLock() {
  TRIMTAB_REAL("5Mutex13ReaderTryLockEv", bool, Mutex*);
  return Locking(this, kTry | kRead, [&] { return real(this); });
}

void Mutex::Unlock() {
  TRIMTAB_REAL("5Mutex6UnlockEv", void, Mutex*);
  Unlocking(this, 0, [&] { return real(this), true; });
}

void Mutex::ReaderUnlock() {
  TRIMTAB_REAL("5Mutex12ReaderUnlockEv", void, Mutex*);
  Unlocking(this, kRead, [&] { return real(this), true; });
}

void Mutex::LockWhen(const Condition& condition) {
  TRIMTAB_REAL("5Mutex8LockWhenERKNS0_9ConditionE", void, Mutex*, const Condition&);
  Locking(this, 0, [&] { return real(this, condition), true; });
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  TRIMTAB_REAL("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*, const Condition&, Duration);
  return Locking(this, 0, [&] { return real(this, condition, timeout); });
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  TRIMTAB_REAL("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*, const Condition&, Time);
  return Locking(this, 0, [&] { return real(this, condition, deadline); });
}

void Mutex::Await(const Condition& condition) {
  TRIMTAB_REAL("5Mutex5AwaitERKNS0_9ConditionE", void, Mutex*, const Condition&);
  Waiting(this, [&] { return real(this, condition), true; });
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  TRIMTAB_REAL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*, const Condition&, Duration);
  return Waiting(this, [&] { return real(this, condition, timeout); });
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  TRIMTAB_REAL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*, const Condition&, Time);
  return Waiting(this, [&] { return real(this, condition, deadline); });
}

void CondVar::Wait(Mutex* mutex) {
  TRIMTAB_REAL("7CondVar4WaitEPNS0_5MutexE", void, CondVar*, Mutex*);
  Waiting(mutex, [&] { return real(this, mutex), true; });
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  TRIMTAB_REAL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool, CondVar*, Mutex*, Duration);
  return Waiting(mutex, [&] { return real(this, mutex, timeout); });
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  TRIMTAB_REAL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool, CondVar*, Mutex*, Time);
  return Waiting(mutex, [&] { return real(this, mutex, deadline); });
}

ABSL_NAMESPACE_END
}  // namespace absl
