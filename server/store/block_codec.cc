#include "server/store/block_codec.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/store/crc32c.h"

namespace trimtab::server {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they lie in memory");

constexpr uint8_t kBytePlanes = 1;
constexpr size_t kChecksumAt = 4;
constexpr size_t kTimeAt = 8;
constexpr size_t kFixedBytes = 16;
constexpr size_t kMaxDims = 2;

// planes[b * n + i] = byte b of values[i]
void SplitPlanes(const void* values, size_t n, size_t width, char* planes) {
  const char* from = static_cast<const char*>(values);
  for (size_t b = 0; b < width; ++b) {
    for (size_t i = 0; i < n; ++i) planes[b * n + i] = from[i * width + b];
  }
}

void JoinPlanes(const char* planes, size_t n, size_t width, void* values) {
  char* to = static_cast<char*>(values);
  for (size_t b = 0; b < width; ++b) {
    for (size_t i = 0; i < n; ++i) to[i * width + b] = planes[b * n + i];
  }
}

uint32_t Checksum(absl::string_view key, absl::string_view value) {
  uint32_t crc = ExtendCrc32c(0, key);
  crc = ExtendCrc32c(crc, value.substr(0, kChecksumAt));
  return ExtendCrc32c(crc, value.substr(kTimeAt));
}

size_t Width(v1::DType dtype) { return dtype == v1::DTYPE_UINT64 ? 8 : 4; }

}  // namespace

absl::Status EncodeBlock(absl::string_view key, const v1::Block& block, v1::DType dtype, int64_t time_unix_nanos,
                         std::string* out) {
  if (dtype != v1::DTYPE_FLOAT32 && dtype != v1::DTYPE_UINT64) return absl::InvalidArgumentError("block has no dtype");
  const bool is_float = dtype == v1::DTYPE_FLOAT32;
  const size_t count = is_float ? block.float32_size() : block.uint64_size();
  const size_t other = is_float ? block.uint64_size() : block.float32_size();
  const auto dims = static_cast<size_t>(block.shape_size());
  uint64_t expected = dims <= kMaxDims ? 1 : 0;
  for (const uint32_t d : block.shape()) expected *= d;
  if (expected != count || other != 0 || count == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block of metric ", block.metric(), " has ", count, " values where its shape says ", expected));
  }
  out->resize(kFixedBytes + 4 * dims + count * Width(dtype));
  char* at = out->data();
  at[0] = kBlockVersion;
  at[1] = static_cast<char>(dtype);
  at[2] = static_cast<char>(dims);
  at[3] = kBytePlanes;
  std::memcpy(at + kTimeAt, &time_unix_nanos, 8);
  for (size_t d = 0; d < dims; ++d) {
    const uint32_t extent = block.shape(static_cast<int>(d));
    std::memcpy(at + kFixedBytes + 4 * d, &extent, 4);
  }
  const void* values = is_float ? static_cast<const void*>(block.float32().data()) : block.uint64().data();
  SplitPlanes(values, count, Width(dtype), at + kFixedBytes + 4 * dims);
  const uint32_t crc = Checksum(key, *out);
  std::memcpy(at + kChecksumAt, &crc, 4);
  return absl::OkStatus();
}

absl::Status DecodeBlock(absl::string_view key, absl::string_view value, v1::Block* block, int64_t* time_unix_nanos) {
  if (value.size() < kFixedBytes) return absl::DataLossError("row is shorter than its header");
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(value[i]); };
  if (byte(0) > kBlockVersion) {
    return absl::UnimplementedError(absl::StrCat("row has format version ", byte(0), ", this build reads up to ",
                                                 kBlockVersion, "; use a newer trimtabd"));
  }
  uint32_t crc;
  std::memcpy(&crc, value.data() + kChecksumAt, 4);
  if (crc != Checksum(key, value)) return absl::DataLossError("row fails its checksum");
  const auto dtype = static_cast<v1::DType>(byte(1));
  const size_t dims = byte(2);
  const bool known = (dtype == v1::DTYPE_FLOAT32 || dtype == v1::DTYPE_UINT64) && byte(3) == kBytePlanes;
  if (byte(0) != kBlockVersion || !known || dims > kMaxDims || value.size() < kFixedBytes + 4 * dims) {
    return absl::DataLossError("row has an impossible header");
  }
  const absl::string_view payload = value.substr(kFixedBytes + 4 * dims);
  const size_t count = payload.size() / Width(dtype);
  block->Clear();
  uint64_t expected = 1;
  for (size_t d = 0; d < dims; ++d) {
    uint32_t extent;
    std::memcpy(&extent, value.data() + kFixedBytes + 4 * d, 4);
    block->add_shape(extent);
    expected *= extent;
  }
  if (expected != count || payload.size() != count * Width(dtype)) {
    return absl::DataLossError("row has a wrong length");
  }
  std::memcpy(time_unix_nanos, value.data() + kTimeAt, 8);
  if (dtype == v1::DTYPE_FLOAT32) {
    block->mutable_float32()->Resize(static_cast<int>(count), 0);
    JoinPlanes(payload.data(), count, 4, block->mutable_float32()->mutable_data());
  } else {
    block->mutable_uint64()->Resize(static_cast<int>(count), 0);
    JoinPlanes(payload.data(), count, 8, block->mutable_uint64()->mutable_data());
  }
  return absl::OkStatus();
}

}  // namespace trimtab::server
