// The C ABI of trimtab/agent.h over the parts of this folder. No exception passes it: nothing here throws.
#include "trimtab/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "agent/core/control_latch.h"
#include "agent/core/fork_guard.h"
#include "agent/core/last_error.h"
#include "agent/core/ring_file.h"
#include "agent/core/ring_writer.h"
#include "agent/core/step_record.h"
#include "agent/core/text_check.h"

struct trimtab_agent {
  trimtab::agent::RingMapping mapping;
  trimtab::agent::RingWriter writer;
  trimtab::agent::StepRecord record;
  trimtab::agent::ForkGuard guard;
  trimtab::agent::ControlLatch latch;
};

namespace trimtab::agent {
namespace {

// A slot holds one command; more than one a boundary comes only from a courier that is just writing.
constexpr int kMaxCommandsPerBoundary = 4;

bool IsDisabled() {
  const char* value = std::getenv("TRIMTAB_DISABLE");
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

// TRIMTAB_OK, or why the call may not touch the agent.
trimtab_status Check(const trimtab_agent* agent) {
  if (agent == nullptr) {
    if (IsDisabled()) return TRIMTAB_DISABLED;
    return Fail(TRIMTAB_INVALID, "agent is NULL: trimtab_open failed or was not called");
  }
  if (agent->guard.forked()) return Fail(TRIMTAB_FORKED, "this process was forked from the one that opened the agent");
  return TRIMTAB_OK;
}

trimtab_status CheckIdentity(const trimtab_options& options, const char* run) {
  if (run == nullptr) return Fail(TRIMTAB_INVALID, "run name: options.run is NULL and TRIMTAB_RUN is not set");
  const size_t bytes = strnlen(run, TRIMTAB_RUN_NAME_BYTES);
  if (bytes == 0) return Fail(TRIMTAB_INVALID, "run name is empty");
  if (bytes >= TRIMTAB_RUN_NAME_BYTES) {
    return Fail(TRIMTAB_INVALID, "run name is longer than %d bytes", TRIMTAB_RUN_NAME_BYTES - 1);
  }
  if (!IsPrintableUtf8(run, bytes)) {
    return Fail(TRIMTAB_INVALID, "run name is not printable UTF-8: no control characters or line breaks");
  }
  if (options.world_size == 0) return Fail(TRIMTAB_INVALID, "world_size is 0");
  if (options.rank >= options.world_size) {
    return Fail(TRIMTAB_INVALID, "rank %u is not below world_size %u", options.rank, options.world_size);
  }
  if (options.local_rank >= options.world_size) {
    return Fail(TRIMTAB_INVALID, "local_rank %u is not below world_size %u", options.local_rank, options.world_size);
  }
  return TRIMTAB_OK;
}

trimtab_status CheckInfo(const char* json, size_t bytes) {
  if (json == nullptr) return Fail(TRIMTAB_INVALID, "info text is NULL");
  if (bytes > kMaxInfoBytes) {
    return Fail(TRIMTAB_INVALID, "info text of %zu bytes is over the limit of %" PRIu64, bytes, kMaxInfoBytes);
  }
  if (!IsUtf8(json, bytes)) return Fail(TRIMTAB_INVALID, "info text is not UTF-8");
  const char* const kSpace = " \t\r\n";
  size_t begin = 0;
  size_t end = bytes;
  while (begin < end && std::strchr(kSpace, json[begin]) != nullptr) ++begin;
  while (end > begin && std::strchr(kSpace, json[end - 1]) != nullptr) --end;
  if (end - begin < 2 || json[begin] != '{' || json[end - 1] != '}') {
    return Fail(TRIMTAB_INVALID, "info text is not a JSON object");
  }
  return TRIMTAB_OK;
}

// ring_dir, $TRIMTAB_RING_DIR, or /dev/shm/trimtab-<uid> (written to `fallback`).
const char* RingDir(const trimtab_options& options, char* fallback, size_t bytes) {
  if (options.ring_dir != nullptr && *options.ring_dir != '\0') return options.ring_dir;
  const char* environment = std::getenv("TRIMTAB_RING_DIR");
  if (environment != nullptr && *environment != '\0') return environment;
  std::snprintf(fallback, bytes, "/dev/shm/trimtab-%u", geteuid());
  return fallback;
}

trimtab_status Open(const trimtab_options& options, trimtab_agent** result) {
  const char* run = options.run != nullptr ? options.run : std::getenv("TRIMTAB_RUN");
  if (const trimtab_status status = CheckIdentity(options, run); status != TRIMTAB_OK) return status;
  const uint64_t ring_bytes = options.ring_bytes == 0 ? kDefaultRingBytes : options.ring_bytes;
  if (ring_bytes < kMinRingBytes || ring_bytes > kMaxRingBytes) {
    return Fail(TRIMTAB_INVALID, "ring_bytes %" PRIu64 " is not between %" PRIu64 " and %" PRIu64, ring_bytes,
                kMinRingBytes, kMaxRingBytes);
  }
  if (options.info_json != nullptr) {
    const trimtab_status status = CheckInfo(options.info_json, strnlen(options.info_json, kMaxInfoBytes + 1));
    if (status != TRIMTAB_OK) return status;
  }
  char fallback[64];
  RingFileOptions file;
  file.ring_dir = RingDir(options, fallback, sizeof(fallback));
  file.run = run;
  file.rank = options.rank;
  file.world_size = options.world_size;
  file.local_rank = options.local_rank;
  file.data_bytes = RoundUp(ring_bytes, kPageBytes);
  file.act = options.act != 0;

  auto* agent = new (std::nothrow) trimtab_agent();
  if (agent == nullptr || !agent->record.Reserve(MaxRecordBytes(file.data_bytes))) {
    delete agent;
    return Fail(TRIMTAB_IO, "no memory for the agent");
  }
  if (const trimtab_status status = agent->mapping.Create(file); status != TRIMTAB_OK) {
    delete agent;
    return status;
  }
  agent->guard.Arm();
  agent->latch = ControlLatch(file.act);
  agent->writer.Attach(agent->mapping.base(), agent->mapping.data_bytes());
  if (options.info_json != nullptr) agent->writer.SetInfo(options.info_json, std::strlen(options.info_json));
  *result = agent;
  return TRIMTAB_OK;
}

void Send(trimtab_agent* agent, const LatchAnswer& answer) {
  if (answer.state == 0) return;
  agent->writer.Ack(answer.plan, static_cast<trimtab_ack_state>(answer.state), answer.step, answer.reason,
                    std::strlen(answer.reason));
}

trimtab_status Put(trimtab_agent* agent, uint32_t metric, bool is_uint64, const void* data, uint32_t dim0,
                   uint32_t dim1) {
  if (const trimtab_status status = Check(agent); status != TRIMTAB_OK) return status;
  return agent->record.Put(metric, is_uint64, data, dim0, dim1);
}

}  // namespace
}  // namespace trimtab::agent

using trimtab::agent::Check;
using trimtab::agent::Fail;

trimtab_status trimtab_open(const trimtab_options* options, trimtab_agent** agent) {
  if (agent == nullptr) return Fail(TRIMTAB_INVALID, "agent is NULL");
  *agent = nullptr;
  if (trimtab::agent::IsDisabled()) return Fail(TRIMTAB_DISABLED, "TRIMTAB_DISABLE is set");
  if (options == nullptr) return Fail(TRIMTAB_INVALID, "options is NULL");
  if (options->struct_size < sizeof(trimtab_options)) {
    return Fail(TRIMTAB_INVALID, "options.struct_size is %u: set it to sizeof(trimtab_options), here %zu",
                options->struct_size, sizeof(trimtab_options));
  }
  return trimtab::agent::Open(*options, agent);
}

void trimtab_close(trimtab_agent* agent) {
  if (agent == nullptr) return;
  if (!agent->guard.forked()) agent->writer.MarkClosed();
  delete agent;
}

trimtab_status trimtab_step_begin(trimtab_agent* agent, uint64_t step, int64_t time_unix_nanos) {
  if (const trimtab_status status = Check(agent); status != TRIMTAB_OK) return status;
  agent->record.Begin(step, time_unix_nanos);
  return TRIMTAB_OK;
}

trimtab_status trimtab_step_put_f32(trimtab_agent* agent, uint32_t metric, const float* data, uint32_t dim0,
                                    uint32_t dim1) {
  return trimtab::agent::Put(agent, metric, false, data, dim0, dim1);
}

trimtab_status trimtab_step_put_u64(trimtab_agent* agent, uint32_t metric, const uint64_t* data, uint32_t dim0,
                                    uint32_t dim1) {
  return trimtab::agent::Put(agent, metric, true, data, dim0, dim1);
}

trimtab_status trimtab_step_commit(trimtab_agent* agent) {
  if (const trimtab_status status = Check(agent); status != TRIMTAB_OK) return status;
  if (!agent->record.open()) return Fail(TRIMTAB_INVALID, "no step was begun: call trimtab_step_begin first");
  uint8_t* record = agent->record.Finish();
  if (record == nullptr) {
    agent->writer.CountRefused();
    return Fail(TRIMTAB_FULL, "the step is larger than a record can be (%" PRIu64 " bytes): raise ring_bytes",
                agent->record.max_bytes());
  }
  agent->writer.Commit(record);
  return TRIMTAB_OK;
}

trimtab_status trimtab_set_info(trimtab_agent* agent, const char* json, size_t bytes) {
  if (const trimtab_status status = Check(agent); status != TRIMTAB_OK) return status;
  if (const trimtab_status status = trimtab::agent::CheckInfo(json, bytes); status != TRIMTAB_OK) return status;
  agent->writer.SetInfo(json, bytes);
  return TRIMTAB_OK;
}

int trimtab_poll_command(trimtab_agent* agent, trimtab_command* command) {
  if (agent == nullptr || command == nullptr || agent->guard.forked()) return 0;
  return agent->writer.PollCommand(command) ? 1 : 0;
}

trimtab_status trimtab_ack(trimtab_agent* agent, uint64_t plan, trimtab_ack_state state, uint64_t step,
                           const char* reason) {
  if (const trimtab_status status = Check(agent); status != TRIMTAB_OK) return status;
  if (state < TRIMTAB_ACK_PREPARED || state > TRIMTAB_ACK_ABORTED) {
    return Fail(TRIMTAB_INVALID, "there is no answer of number %d", static_cast<int>(state));
  }
  const size_t bytes = reason == nullptr ? 0 : std::strlen(reason);
  if (!trimtab::agent::IsUtf8(reason, bytes)) return Fail(TRIMTAB_INVALID, "reason is not UTF-8");
  agent->writer.Ack(plan, state, step, reason,
                    trimtab::agent::Utf8Prefix(reason, bytes, trimtab::agent::kMaxReasonBytes));
  return TRIMTAB_OK;
}

int trimtab_latch_step(trimtab_agent* agent, uint64_t next_step, uint8_t* modes, uint32_t layers) {
  if (agent == nullptr || agent->guard.forked() || (modes == nullptr && layers > 0)) return 0;
  if (layers > TRIMTAB_MAX_LAYERS) return 0;
  trimtab_command command;
  for (int i = 0; i < trimtab::agent::kMaxCommandsPerBoundary && agent->writer.PollCommand(&command); ++i) {
    trimtab::agent::Send(agent, agent->latch.OnCommand(command, next_step, layers));
  }
  bool changed = false;
  trimtab::agent::Send(agent, agent->latch.OnBoundary(next_step, modes, layers, &changed));
  return changed ? 1 : 0;
}

uint64_t trimtab_dropped_steps(const trimtab_agent* agent) {
  return agent == nullptr ? 0 : agent->writer.refused_steps();
}

const char* trimtab_ring_path(const trimtab_agent* agent) { return agent == nullptr ? "" : agent->mapping.path(); }

const char* trimtab_version(void) { return "0.1.0"; }
