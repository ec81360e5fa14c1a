// Keys of small durable values. A run name is up to 255 bytes of anything; a key is at most 256 bytes.
#ifndef TRIMTAB_SERVER_POLICY_STATE_KEY_H_
#define TRIMTAB_SERVER_POLICY_STATE_KEY_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trimtab::server {

// `prefix` + the run's name when it is short, else its first 120 bytes and a 64-bit FNV-1a of the whole. The value must
// name the run in full, so that a reader can tell two runs of one key apart.
inline std::string RunStateKey(absl::string_view prefix, absl::string_view run) {
  constexpr size_t kPlainBytes = 120;
  if (run.size() <= kPlainBytes) return absl::StrCat(prefix, run);
  uint64_t hash = 14695981039346656037ull;
  for (const char c : run) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return absl::StrCat(prefix, run.substr(0, kPlainBytes), "#", absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_STATE_KEY_H_
