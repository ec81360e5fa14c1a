// libFuzzer's door to the ring harness. Needs clang: cmake --build <folder> --target ring_fuzzer_build, then
// tests/fuzz/ring_fuzzer -max_len=512 <scratch folder> tests/fuzz/corpus/ring.
#include "tests/fuzz/ring_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static trimtab::agent::RingHarness harness;
  harness.Run(data, size);
  return 0;
}
