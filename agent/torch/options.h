// What trimtab::start is told.
#ifndef TRIMTAB_AGENT_TORCH_OPTIONS_H_
#define TRIMTAB_AGENT_TORCH_OPTIONS_H_

#include <cstdint>
#include <string>

#include "agent/torch/json.h"
#include "trimtab/agent.h"
#include "trimtab/kernels.h"

namespace trimtab::agent {

struct ShimOptions {
  std::string run;       // "": $TRIMTAB_RUN
  std::string ring_dir;  // "": the agent's default
  uint32_t rank = 0, world_size = 1, local_rank = 0;
  uint64_t ring_bytes = 0;  // 0: the agent's default
  bool act = false;         // the owner allows switches
  bool lazy = false;        // open the ring with trimtab::open_ring, not at start
  trimtab_mode mode = TRIMTAB_MODE_OBSERVE;
  uint64_t start_step = 1;          // number of the first step
  uint32_t sample_every_steps = 1;  // least distance of sampled steps; the overhead budget may widen it
  uint32_t probe_rows = 64;         // query rows a head that the probe reads in one call; the budget may lower it
  trimtab_storage storage = TRIMTAB_STORE_SAME;  // fault injector's format; SAME is off
  std::string storage_name;                      // as given
  double overhead_budget = 0.01;                 // share of step time
  double shadow_tolerance = 1;                   // multiplies the tolerances of the shadow comparison
  Json info;                                     // RankInfo; null when not given
};

// Reads options from a JSON object; unknown keys are refused. An empty emulate_storage takes
// $TRIMTAB_EMULATE_STORAGE. False: *error is one line that names the key and what it may be.
bool ParseOptions(const std::string& json, ShimOptions* options, std::string* error);

const char* ModeName(uint32_t mode);      // "observe"
const char* ModeEnumName(uint32_t mode);  // "KERNEL_MODE_OBSERVE"

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_OPTIONS_H_
