#include "kernels/cpu/scratch.h"

#include <cstddef>
#include <new>

namespace trimtab::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

struct Buffer {
  float* data = nullptr;
  int64_t floats = 0;
  ~Buffer() { ::operator delete(data, kAlignment); }
};

thread_local Buffer buffers[static_cast<int>(Slot::kCount)];

}  // namespace

float* ThreadScratch(Slot slot, int64_t floats) {
  Buffer& buffer = buffers[static_cast<int>(slot)];
  if (floats > buffer.floats || buffer.data == nullptr) {
    const int64_t wanted = (floats + 15) / 16 * 16 + 16;
    void* data = ::operator new(static_cast<size_t>(wanted) * sizeof(float), kAlignment, std::nothrow);
    if (data == nullptr) return nullptr;
    ::operator delete(buffer.data, kAlignment);
    buffer.data = static_cast<float*>(data);
    buffer.floats = wanted;
  }
  return buffer.data;
}

}  // namespace trimtab::cpu
