/* C ABI of the in-process half of trimtab: one step ring and one control latch in shared memory.
 *
 * A trainer in any language opens an agent, writes one record a step, and polls for commands at its step boundary. No
 * call blocks, allocates after trimtab_open, takes a lock, opens a socket or starts a thread. A trainer may die at any
 * instruction: what was committed stays readable for the courier. Format: docs/ring.md.
 *
 * Threads: one thread at a time per agent (the training thread). After fork() the child's calls return
 * TRIMTAB_FORKED and touch nothing. With TRIMTAB_DISABLE set (to anything but "" and "0") trimtab_open gives
 * TRIMTAB_DISABLED and a NULL agent, on which every call is a no-op.
 */
#ifndef TRIMTAB_AGENT_H_
#define TRIMTAB_AGENT_H_

#include <stddef.h>
#include <stdint.h>

/* The shared library exports these and nothing else. Define it empty to link the sources into a library of your own. */
#ifndef TRIMTAB_API
#define TRIMTAB_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trimtab_agent trimtab_agent;

typedef enum {
  TRIMTAB_OK = 0,
  TRIMTAB_INVALID = 1,  /* bad argument; see trimtab_last_error */
  TRIMTAB_FULL = 2,     /* record larger than the ring takes: refused and counted */
  TRIMTAB_IO = 3,       /* file could not be made or mapped */
  TRIMTAB_FORKED = 4,   /* called in a forked child */
  TRIMTAB_DISABLED = 5, /* TRIMTAB_DISABLE=1 */
} trimtab_status;

typedef enum {
  TRIMTAB_MODE_NATIVE = 1,
  TRIMTAB_MODE_OBSERVE = 2,
  TRIMTAB_MODE_STABILIZED = 3,
  TRIMTAB_MODE_PAPER = 4,
} trimtab_mode;

/* Metrics of the built-in schema; ids are stable. Axes, unit and aggregation: trimtab_metric_info. */
#define TRIMTAB_MAX_LAYERS 1024
#define TRIMTAB_RUN_NAME_BYTES 256

typedef enum { TRIMTAB_AXES_SCALAR = 0, TRIMTAB_AXES_LAYER = 1, TRIMTAB_AXES_LAYER_HEAD = 2 } trimtab_axes;

typedef struct {
  uint32_t id;
  const char* name;
  const char* unit;
  int32_t is_uint64; /* else float32 */
  trimtab_axes axes;
  int32_t aggregation; /* trimtab.v1.Aggregation */
  const char* help;
} trimtab_metric;

/* Row `index` of the schema, NULL past its end. */
TRIMTAB_API const trimtab_metric* trimtab_metric_info(uint32_t index);
/* 0 when there is no metric of that name. */
TRIMTAB_API uint32_t trimtab_metric_id(const char* name);

typedef struct {
  uint32_t struct_size; /* sizeof(trimtab_options) */
  const char* ring_dir; /* NULL: $TRIMTAB_RING_DIR, else /dev/shm/trimtab-<uid>; made with mode 0700 */
  const char* run;      /* 1 to 255 bytes of printable UTF-8; NULL: $TRIMTAB_RUN */
  uint32_t rank, world_size, local_rank;
  uint64_t ring_bytes;   /* 64 KiB to 1 GiB, 0: 8 MiB; allocated at once, with 0.5 MiB more for info and control */
  int32_t act;           /* 1: the owner allows switches */
  const char* info_json; /* RankInfo as proto3 JSON, or NULL */
} trimtab_options;

/* Makes the ring file `<ring_dir>/<16 hex digits of incarnation>-<rank>.ring` (mode 0600) with all of its pages, so a
 * full disk is TRIMTAB_IO here and never a signal later. On any error *agent is NULL. */
TRIMTAB_API trimtab_status trimtab_open(const trimtab_options* options, trimtab_agent** agent);
/* Marks the ring as closed cleanly and unmaps it; the courier removes the file when all is delivered. In a forked child
 * it only frees the child's copy. NULL is allowed. */
TRIMTAB_API void trimtab_close(trimtab_agent* agent);

/* One step: begin, any number of puts (each metric once), commit. Nothing is visible before commit; a begin discards a
 * step that was not committed. A put that no longer fits into a quarter of the ring gives TRIMTAB_FULL, and so does the
 * commit of that step, which counts it (trimtab_dropped_steps). A put that gives TRIMTAB_INVALID changes nothing. */
TRIMTAB_API trimtab_status trimtab_step_begin(trimtab_agent* agent, uint64_t step, int64_t time_unix_nanos);
/* shape: dim0 = layers, dim1 = heads as the metric's axes say; 0 for an absent axis. Data row-major, copied. */
TRIMTAB_API trimtab_status trimtab_step_put_f32(trimtab_agent* agent, uint32_t metric, const float* data, uint32_t dim0,
                                                uint32_t dim1);
TRIMTAB_API trimtab_status trimtab_step_put_u64(trimtab_agent* agent, uint32_t metric, const uint64_t* data,
                                                uint32_t dim0, uint32_t dim1);
TRIMTAB_API trimtab_status trimtab_step_commit(trimtab_agent* agent);

/* Replaces the info text (RankInfo JSON with layers, coverage, modes; at most 256 KiB). */
TRIMTAB_API trimtab_status trimtab_set_info(trimtab_agent* agent, const char* json, size_t bytes);

/* --- control latch ------------------------------------------------------------------------------------------- */

typedef enum { TRIMTAB_PHASE_PREPARE = 1, TRIMTAB_PHASE_COMMIT = 2, TRIMTAB_PHASE_ABORT = 3 } trimtab_phase;
typedef enum {
  TRIMTAB_ACK_PREPARED = 1,
  TRIMTAB_ACK_COMMITTED = 2,
  TRIMTAB_ACK_APPLIED = 3,
  TRIMTAB_ACK_REFUSED = 4,
  TRIMTAB_ACK_ABORTED = 5,
} trimtab_ack_state;

typedef struct {
  uint64_t plan;
  uint32_t phase;          /* trimtab_phase */
  uint32_t mode;           /* trimtab_mode */
  uint64_t effective_step; /* COMMIT: first step computed in `mode` */
  int64_t deadline_unix_nanos;
  uint32_t layer_count;                   /* 0: all layers */
  uint8_t layers[TRIMTAB_MAX_LAYERS / 8]; /* bit set */
} trimtab_command;

/* Returns 1 and fills *command when there is one that was not taken yet, else 0. Two relaxed loads when idle. phase,
 * mode and layer_count are in range: a malformed command is answered REFUSED here. Call at the step boundary only. */
TRIMTAB_API int trimtab_poll_command(trimtab_agent* agent, trimtab_command* command);
/* Answers the command; reason (at most 255 bytes) for REFUSED. Keeps the last 16 answers for the courier. */
TRIMTAB_API trimtab_status trimtab_ack(trimtab_agent* agent, uint64_t plan, trimtab_ack_state state, uint64_t step,
                                       const char* reason);

/* Convenience latch that does the protocol for a trainer without a shadow check: prepares at once, commits if
 * effective_step is still ahead (refuses otherwise), applies at it. Call once at every step boundary with the number of
 * the step about to be computed; modes[layers] is updated in place. Returns 1 when modes changed. Refuses everything
 * when the agent was opened without act. Does not look at deadlines: the server aborts what is over. */
TRIMTAB_API int trimtab_latch_step(trimtab_agent* agent, uint64_t next_step, uint8_t* modes, uint32_t layers);

/* Path of the ring file, valid until trimtab_close. */
TRIMTAB_API const char* trimtab_ring_path(const trimtab_agent* agent);
/* Steps that trimtab_step_commit refused as too large. */
TRIMTAB_API uint64_t trimtab_dropped_steps(const trimtab_agent* agent);
/* This thread's last error, "" if none; a call that succeeds leaves it. Valid until the thread's next failing call. */
TRIMTAB_API const char* trimtab_last_error(void);
TRIMTAB_API const char* trimtab_version(void);

#ifdef __cplusplus
}
#endif
#endif
