// Prints rings as JSON lines, for tests in Python: {"identity":…}, {"info":…}, then one {"step":…} a record.
//
//   ring_dump RING…
//
// Non-finite numbers are the strings "NaN", "Infinity", "-Infinity". Exit status 1 when a ring cannot be read.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "agent/core/ring_reader.h"
#include "trimtab/agent.h"

namespace {

using trimtab::agent::ReadResult;
using trimtab::agent::RingBlock;
using trimtab::agent::RingError;
using trimtab::agent::RingReader;
using trimtab::agent::RingStep;

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const unsigned char c : text) {
    char escape[8];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

void PrintNumber(const RingBlock& block, uint64_t index) {
  if (block.is_uint64) {
    std::printf("%llu", static_cast<unsigned long long>(static_cast<const uint64_t*>(block.data)[index]));
    return;
  }
  const float value = static_cast<const float*>(block.data)[index];
  if (std::isnan(value)) {
    std::printf("\"NaN\"");
  } else if (std::isinf(value)) {
    std::printf(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
  } else {
    std::printf("%.9g", value);
  }
}

void PrintBlock(const RingBlock& block) {
  if (block.dims == 0) {
    PrintNumber(block, 0);
    return;
  }
  const uint64_t columns = block.dims == 2 ? block.shape[1] : 1;
  std::printf("[");
  for (uint64_t row = 0; row < block.shape[0]; ++row) {
    std::printf(block.dims == 2 ? "%s[" : "%s", row ? "," : "");
    for (uint64_t column = 0; column < columns; ++column) {
      if (column) std::printf(",");
      PrintNumber(block, row * columns + column);
    }
    if (block.dims == 2) std::printf("]");
  }
  std::printf("]");
}

bool Dump(const char* path, const std::map<uint32_t, std::string>& names) {
  RingError error = RingError::kOk;
  std::string message;
  const std::unique_ptr<RingReader> ring = RingReader::Open(path, &error, &message);
  if (!ring) {
    std::fprintf(stderr, "ring_dump: %s: %s\n", path, message.c_str());
    return false;
  }
  const auto& who = ring->identity();
  std::printf(
      "{\"identity\":{\"path\":%s,\"run\":%s,\"rank\":%u,\"world_size\":%u,\"local_rank\":%u,\"pid\":%u,"
      "\"incarnation\":%llu,\"act\":%s,\"closed\":%s,\"alive\":%s}}\n",
      Quoted(path).c_str(), Quoted(who.run).c_str(), who.rank, who.world_size, who.local_rank, who.pid,
      static_cast<unsigned long long>(who.incarnation), who.act ? "true" : "false", ring->closed() ? "true" : "false",
      ring->writer_alive() ? "true" : "false");
  std::string info;
  if (ring->ReadInfo(&info) && !info.empty()) std::printf("{\"info\":%s}\n", info.c_str());
  RingStep step;
  ring->SeekAfter(0);
  for (;;) {
    const ReadResult result = ring->Next(&step);
    if (result == ReadResult::kEmpty) return true;
    if (result == ReadResult::kCorrupt) {
      std::fprintf(stderr, "ring_dump: %s: %s\n", path, ring->error().c_str());
      return false;
    }
    if (result == ReadResult::kSkipped) continue;
    std::printf("{\"step\":%llu,\"sequence\":%llu,\"metrics\":{", static_cast<unsigned long long>(step.step),
                static_cast<unsigned long long>(step.sequence));
    bool first = true;
    for (const RingBlock& block : step.blocks) {
      const auto name = names.find(block.metric);
      std::printf("%s%s:", first ? "" : ",", Quoted(name == names.end() ? "unknown" : name->second).c_str());
      PrintBlock(block);
      first = false;
    }
    std::printf("}}\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::map<uint32_t, std::string> names;
  for (uint32_t index = 0; const trimtab_metric* metric = trimtab_metric_info(index); ++index) {
    names[metric->id] = metric->name;
  }
  bool good = argc > 1;
  for (int i = 1; i < argc; ++i) good = Dump(argv[i], names) && good;
  return good ? 0 : 1;
}
