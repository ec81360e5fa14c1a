// What the shim sees and what it does not, by name. Silence is never health.
#ifndef TRIMTAB_AGENT_TORCH_COVERAGE_H_
#define TRIMTAB_AGENT_TORCH_COVERAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/torch/json.h"

namespace trimtab::agent {

// Not thread-safe; the session's lock guards it.
class Coverage {
 public:
  static constexpr size_t kMaxReasons = 64;  // (op, reason) pairs; later ones fold into "other"
  static constexpr size_t kMaxNotes = 64;
  static constexpr size_t kMaxErrors = 32;

  // `op` and `reason` must be string literals: they are compared by content, kept by pointer.
  void PassBy(const char* op, const char* reason, uint64_t calls = 1);
  void Note(const std::string& note);
  // A note that replaces the one with the same prefix ("sampling: …").
  void ReplaceNote(const std::string& prefix, const std::string& text);
  void Error(const std::string& error);
  void Hooked(const char* op) { hooked_.push_back(op); }

  // trimtab.v1.Coverage as proto3 JSON.
  Json ToJson() const;
  // Rises with every change that is worth telling soon (notes, errors, reasons seen for the first time).
  uint64_t version() const { return version_; }

  uint64_t calls_hooked = 0;
  uint64_t calls_recomputed = 0;
  uint64_t calls_passed = 0;
  uint64_t last_sample_step = 0;
  int64_t last_sample_unix_nanos = 0;

 private:
  struct Reason {
    const char* op;
    const char* reason;
    uint64_t calls;
  };
  std::vector<Reason> passed_;
  std::vector<std::string> notes_, errors_;
  std::vector<const char*> hooked_;
  uint64_t dropped_texts_ = 0, version_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_COVERAGE_H_
