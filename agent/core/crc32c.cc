#include "agent/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace trimtab::agent {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // 0x1EDC6F41 reflected

// Slicing-by-8: tables[k][b] is the remainder of byte b followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint64_t Load64(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Hardware(uint32_t crc, const uint8_t* p, size_t bytes) {
  uint64_t state = static_cast<uint32_t>(~crc);
  for (; bytes >= 8; p += 8, bytes -= 8) state = _mm_crc32_u64(state, Load64(p));
  uint32_t tail = static_cast<uint32_t>(state);
  for (; bytes > 0; ++p, --bytes) tail = _mm_crc32_u8(tail, *p);
  return ~tail;
}
bool Detect() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
__attribute__((target("+crc"))) uint32_t Hardware(uint32_t crc, const uint8_t* p, size_t bytes) {
  uint32_t state = ~crc;
  for (; bytes >= 8; p += 8, bytes -= 8) state = __crc32cd(state, Load64(p));
  for (; bytes > 0; ++p, --bytes) state = __crc32cb(state, *p);
  return ~state;
}
bool Detect() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
uint32_t Hardware(uint32_t crc, const uint8_t* p, size_t bytes) { return Crc32cPortable(crc, p, bytes); }
bool Detect() { return false; }
#endif

}  // namespace

uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t bytes) {
  const auto* p = static_cast<const uint8_t*>(data);
  uint32_t state = ~crc;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    const uint64_t word = Load64(p) ^ state;
    state = kTables[7][word & 0xFF] ^ kTables[6][(word >> 8) & 0xFF] ^ kTables[5][(word >> 16) & 0xFF] ^
            kTables[4][(word >> 24) & 0xFF] ^ kTables[3][(word >> 32) & 0xFF] ^ kTables[2][(word >> 40) & 0xFF] ^
            kTables[1][(word >> 48) & 0xFF] ^ kTables[0][word >> 56];
  }
  for (; bytes > 0; ++p, --bytes) state = (state >> 8) ^ kTables[0][(state ^ *p) & 0xFF];
  return ~state;
}

bool Crc32cIsHardware() {
  static const bool hardware = Detect();
  return hardware;
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) {
  if (Crc32cIsHardware()) return Hardware(crc, static_cast<const uint8_t*>(data), bytes);
  return Crc32cPortable(crc, data, bytes);
}

}  // namespace trimtab::agent
