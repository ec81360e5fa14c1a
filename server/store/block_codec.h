// The value of one row: a dense block with its time and a checksum.
//
//   version u8 = 1 · dtype u8 · dims u8 · encoding u8 = 1 · CRC-32C u32 · time i64 · shape u32 × dims · payload
//
// Little-endian. The checksum covers the row's key, then the value without the checksum's own four bytes, so a value
// under a wrong key is found too. Encoding 1: values are split into byte planes (first bytes of all values, then second
// bytes, …), which puts signs and exponents side by side for LZ4 and zstd. Bit patterns are kept, NaN payloads
// included.
#ifndef TRIMTAB_SERVER_STORE_BLOCK_CODEC_H_
#define TRIMTAB_SERVER_STORE_BLOCK_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

inline constexpr uint8_t kBlockVersion = 1;

// Replaces *out. The block's dtype is `dtype`; INVALID_ARGUMENT when its values do not match its shape or dtype.
absl::Status EncodeBlock(absl::string_view key, const v1::Block& block, v1::DType dtype, int64_t time_unix_nanos,
                         std::string* out);

// DATA_LOSS when the checksum or a length is wrong, UNIMPLEMENTED for a newer version. Sets everything but the metric.
absl::Status DecodeBlock(absl::string_view key, absl::string_view value, v1::Block* block, int64_t* time_unix_nanos);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_BLOCK_CODEC_H_
