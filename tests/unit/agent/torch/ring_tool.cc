// Reads a ring as JSON lines and writes commands into it, for the Python tests beside this file.
//   ring_tool FILE dump                                  steps, then info, then acks
//   ring_tool FILE command PLAN PHASE MODE EFFECTIVE DEADLINE_NANOS [LAYER…]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "agent/core/ring_reader.h"

namespace {

using trimtab::agent::RingBlock;

const char* MetricName(uint32_t id) {
  for (uint32_t i = 0; const trimtab_metric* metric = trimtab_metric_info(i); ++i) {
    if (metric->id == id) return metric->name;
  }
  return "unknown";
}

void PrintValue(const RingBlock& block, uint64_t i) {
  if (block.is_uint64) {
    std::printf("%llu", static_cast<unsigned long long>(static_cast<const uint64_t*>(block.data)[i]));
    return;
  }
  const float value = static_cast<const float*>(block.data)[i];
  if (std::isnan(value)) {
    std::printf("NaN");
  } else if (std::isinf(value)) {
    std::printf(value > 0 ? "Infinity" : "-Infinity");
  } else {
    std::printf("%.9g", static_cast<double>(value));
  }
}

void Dump(trimtab::agent::RingReader* ring) {
  trimtab::agent::RingStep step;
  ring->SeekAfter(0);
  while (ring->Next(&step) == trimtab::agent::ReadResult::kStep) {
    std::printf("{\"step\":%llu,\"time\":%lld", static_cast<unsigned long long>(step.step),
                static_cast<long long>(step.time_unix_nanos));
    for (const RingBlock& block : step.blocks) {
      std::printf(",\"%s\":{\"shape\":[", MetricName(block.metric));
      for (uint32_t d = 0; d < block.dims; ++d) std::printf(d == 0 ? "%u" : ",%u", block.shape[d]);
      std::printf("],\"data\":[");
      for (uint64_t i = 0; i < block.count; ++i) {
        if (i > 0) std::printf(",");
        PrintValue(block, i);
      }
      std::printf("]}");
    }
    std::printf("}\n");
  }
  std::string info;
  if (ring->ReadInfo(&info) && !info.empty()) std::printf("{\"info\":%s}\n", info.c_str());
  for (const auto& ack : ring->ReadAcks(0)) {
    std::printf("{\"ack\":%d,\"plan\":%llu,\"at\":%llu,\"reason\":\"%s\"}\n", ack.state,
                static_cast<unsigned long long>(ack.plan), static_cast<unsigned long long>(ack.step),
                ack.reason.c_str());
  }
  std::printf("{\"closed\":%s}\n", ring->closed() ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  trimtab::agent::RingError error;
  std::string message;
  auto ring = trimtab::agent::RingReader::Open(argv[1], &error, &message);
  if (ring == nullptr) {
    std::fprintf(stderr, "%s\n", message.c_str());
    return 1;
  }
  if (std::strcmp(argv[2], "dump") == 0) {
    Dump(ring.get());
    return 0;
  }
  if (std::strcmp(argv[2], "command") != 0 || argc < 8) return 2;
  trimtab_command command = {};
  command.plan = std::strtoull(argv[3], nullptr, 10);
  command.phase = static_cast<uint32_t>(std::atoi(argv[4]));
  command.mode = static_cast<uint32_t>(std::atoi(argv[5]));
  command.effective_step = std::strtoull(argv[6], nullptr, 10);
  command.deadline_unix_nanos = std::strtoll(argv[7], nullptr, 10);
  for (int i = 8; i < argc; ++i) {
    const int layer = std::atoi(argv[i]);
    command.layers[layer / 8] |= static_cast<uint8_t>(1 << (layer % 8));
    ++command.layer_count;
  }
  ring->WriteCommand(command);
  return 0;
}
