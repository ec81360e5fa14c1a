// Plays the corpus and many deterministic mutations of it through the ring harness, with any compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/ring_harness.h"

namespace trimtab::agent {
namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> Corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TRIMTAB_RING_CORPUS)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Changes, inserts, erases and splices: what a fuzzer does, from a fixed seed.
Bytes Mutate(const std::vector<Bytes>& corpus, std::mt19937* random) {
  const auto below = [&](size_t n) { return static_cast<size_t>((*random)() % n); };
  Bytes bytes = corpus[below(corpus.size())];
  for (size_t i = below(8) + 1; i > 0; --i) {
    const size_t at = below(bytes.size() + 1);
    switch (below(5)) {
      case 0:
        if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<uint8_t>((*random)());
        break;
      case 2:
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), static_cast<uint8_t>((*random)()));
        break;
      case 3:
        if (at < bytes.size()) bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
        break;
      default: {
        const Bytes& other = corpus[below(corpus.size())];
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), other.begin(), other.end());
      }
    }
  }
  bytes.resize(std::min<size_t>(bytes.size(), 512));
  return bytes;
}

TEST(RingReplayTest, Corpus) {
  const std::vector<Bytes> corpus = Corpus();
  ASSERT_GE(corpus.size(), 10u);
  RingHarness harness;
  for (const Bytes& bytes : corpus) harness.Run(bytes.data(), bytes.size());
}

TEST(RingReplayTest, Mutations) {
  const std::vector<Bytes> corpus = Corpus();
  RingHarness harness;
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const Bytes bytes = Mutate(corpus, &random);
    harness.Run(bytes.data(), bytes.size());
  }
}

TEST(RingReplayTest, Noise) {
  RingHarness harness;
  std::mt19937 random(5);
  for (int i = 0; i < 5000; ++i) {
    Bytes bytes(random() % 256);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    harness.Run(bytes.data(), bytes.size());
  }
}

}  // namespace
}  // namespace trimtab::agent
