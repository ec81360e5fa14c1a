// Bounds on what a peer may send. Every refusal at a bound is counted (ingest) and names the bound in its message.
#ifndef TRIMTAB_SERVER_MODEL_LIMITS_H_
#define TRIMTAB_SERVER_MODEL_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace trimtab::server {

inline constexpr uint32_t kProtocolVersion = 1;

inline constexpr size_t kMaxMessageBytes = size_t{4} << 20;
// The transport refuses above this without a Refusal; between the two the server explains itself first.
inline constexpr size_t kMaxTransportMessageBytes = size_t{16} << 20;

inline constexpr size_t kMaxRunNameBytes = 255;
inline constexpr size_t kMaxMetricNameBytes = 64;
inline constexpr size_t kMaxRankInfoBytes = size_t{512} << 10;

inline constexpr uint32_t kMaxWorldSize = 32768;
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxHeads = 1024;
inline constexpr size_t kMaxMetrics = 256;
inline constexpr uint32_t kMaxChannelsPerStream = 1024;
inline constexpr size_t kMaxStateKeyBytes = 256;

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_MODEL_LIMITS_H_
