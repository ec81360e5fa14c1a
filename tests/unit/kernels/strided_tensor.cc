#include "tests/unit/kernels/strided_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trimtab::testing {
namespace {

size_t BytesOf(trimtab_dtype dtype) { return dtype == TRIMTAB_F32 ? 4 : 2; }

// Nearest value with `bits` explicit mantissa bits and exponents of at least `min_exponent`, ties to even.
double NearestWithBits(double x, int bits, int min_exponent) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  return std::ldexp(std::nearbyint(std::ldexp(x, bits - exponent)), exponent - bits);
}

uint16_t Bf16Bits(double x) {
  const float f = static_cast<float>(NearestWithBits(x, 7, -126));
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return static_cast<uint16_t>(std::isnan(f) ? 0x7fc0u : u >> 16);
}

uint16_t F16Bits(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0x7e00;
  const double a = std::fabs(NearestWithBits(x, 10, -14));
  if (a >= 65536.0) return sign | 0x7c00;
  if (a < std::ldexp(1.0, -14)) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(a, 24)));
  const int exponent = std::ilogb(a);
  const int mantissa = static_cast<int>(std::ldexp(a, 10 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | mantissa);
}

double F16Value(uint16_t h) {
  const double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double Bf16Value(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

}  // namespace

Layout RandomLayout(std::mt19937& random) {
  Layout layout;
  std::shuffle(layout.order.begin(), layout.order.end(), random);
  for (auto& padding : layout.padding) padding = std::uniform_int_distribution<int64_t>(0, 3)(random);
  return layout;
}

StridedTensor::StridedTensor(trimtab_dtype dtype, std::array<int64_t, 4> sizes, const Layout& layout)
    : dtype_(dtype), sizes_(sizes) {
  int64_t next = 1;
  for (int i = 3; i >= 0; --i) {
    const int dimension = layout.order[i];
    stride_[dimension] = next;
    next *= sizes[dimension] + layout.padding[i];
  }
  // 0xff everywhere is NaN in every dtype: what must not be read or must be written shows.
  bytes_.assign(static_cast<size_t>(next) * BytesOf(dtype), 0xff);
}

double StridedTensor::Get(int64_t batch, int64_t head, int64_t row, int64_t column) const {
  const size_t offset = static_cast<size_t>(Offset(batch, head, row, column));
  if (dtype_ == TRIMTAB_F32) {
    float f;
    std::memcpy(&f, &bytes_[offset * 4], sizeof f);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, &bytes_[offset * 2], sizeof h);
  return dtype_ == TRIMTAB_BF16 ? Bf16Value(h) : F16Value(h);
}

void StridedTensor::Set(int64_t batch, int64_t head, int64_t row, int64_t column, double value) {
  const size_t offset = static_cast<size_t>(Offset(batch, head, row, column));
  if (dtype_ == TRIMTAB_F32) {
    const float f = static_cast<float>(value);
    std::memcpy(&bytes_[offset * 4], &f, sizeof f);
    return;
  }
  const uint16_t h = dtype_ == TRIMTAB_BF16 ? Bf16Bits(value) : F16Bits(value);
  std::memcpy(&bytes_[offset * 2], &h, sizeof h);
}

void StridedTensor::FillNormal(std::mt19937& random, double mean, double deviation) {
  std::normal_distribution<double> normal(mean, deviation);
  for (int64_t b = 0; b < sizes_[0]; ++b) {
    for (int64_t h = 0; h < sizes_[1]; ++h) {
      for (int64_t r = 0; r < sizes_[2]; ++r) {
        for (int64_t c = 0; c < sizes_[3]; ++c) Set(b, h, r, c, normal(random));
      }
    }
  }
}

void StridedTensor::FillConstant(double value) {
  for (int64_t b = 0; b < sizes_[0]; ++b) {
    for (int64_t h = 0; h < sizes_[1]; ++h) {
      for (int64_t r = 0; r < sizes_[2]; ++r) {
        for (int64_t c = 0; c < sizes_[3]; ++c) Set(b, h, r, c, value);
      }
    }
  }
}

trimtab_tensor StridedTensor::view() const { return {bytes_.data(), {stride_[0], stride_[1], stride_[2], stride_[3]}}; }

trimtab_mutable_tensor StridedTensor::mutable_view() {
  return {bytes_.data(), {stride_[0], stride_[1], stride_[2], stride_[3]}};
}

double NearestOf(trimtab_dtype dtype, double x) {
  if (dtype == TRIMTAB_F32) return static_cast<float>(x);
  return dtype == TRIMTAB_BF16 ? Bf16Value(Bf16Bits(x)) : F16Value(F16Bits(x));
}

}  // namespace trimtab::testing
