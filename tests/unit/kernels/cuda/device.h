// Device memory, rounding and random data for the tests of the CUDA kernels.
#ifndef TRIMTAB_TESTS_UNIT_KERNELS_CUDA_DEVICE_H_
#define TRIMTAB_TESTS_UNIT_KERNELS_CUDA_DEVICE_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "trimtab/kernels_cuda.h"

namespace trimtab {

// A device copy of a host vector.
template <typename T>
class Device {
 public:
  explicit Device(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T) + 16), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  explicit Device(size_t size) : Device(std::vector<T>(size, T{})) {}
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> Host() const {
    std::vector<T> host(size_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

inline float FromStored(trimtab_dtype dtype, uint16_t bits) {
  if (dtype == TRIMTAB_BF16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
  }
  _Float16 half;
  std::memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}

inline uint16_t ToStored(trimtab_dtype dtype, float x) {
  if (dtype == TRIMTAB_BF16) {
    uint32_t wide;
    const float rounded = trimtab_round(x, TRIMTAB_STORE_BF16);
    std::memcpy(&wide, &rounded, sizeof wide);
    return static_cast<uint16_t>((wide >> 16) | (x != x ? 0x40 : 0));
  }
  const auto half = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

inline std::vector<uint16_t> Normal(trimtab_dtype dtype, size_t n, uint32_t seed, float mean = 0, float sd = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, sd);
  std::vector<uint16_t> x(n);
  for (auto& e : x) e = ToStored(dtype, normal(random));
  return x;
}

inline void Synchronize() { ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess); }

}  // namespace trimtab
#endif
