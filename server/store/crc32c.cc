#include "server/store/crc32c.h"

#include <array>
#include <cstring>

namespace trimtab::server {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82F63B78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) ? kReflectedPolynomial : 0);
    table[i] = c;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t ExtendByTable(uint32_t state, absl::string_view data) {
  for (const char c : data) state = (state >> 8) ^ kTable[(state ^ static_cast<uint8_t>(c)) & 0xFF];
  return state;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ExtendBySse(uint32_t state, absl::string_view data) {
  uint64_t wide = state;
  size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, data.data() + at, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  auto narrow = static_cast<uint32_t>(wide);
  for (; at < data.size(); ++at) narrow = __builtin_ia32_crc32qi(narrow, static_cast<uint8_t>(data[at]));
  return narrow;
}
#endif

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
#if defined(__x86_64__)
  static const bool has_sse = __builtin_cpu_supports("sse4.2");
  if (has_sse) return ~ExtendBySse(~crc, data);
#endif
  return ~ExtendByTable(~crc, data);
}

}  // namespace trimtab::server
