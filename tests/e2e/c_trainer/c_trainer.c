/* How a trainer that is not Python uses trimtab: a small training loop in C with the agent around it.
 *
 * It fits a linear model to 256 noisy samples by gradient descent with momentum and reports loss, gradient norm,
 * learning rate and the kernel mode of each layer. It has no attention, so a mode is only kept and printed here; a real
 * trainer would choose its attention kernel by it. The agent is optional at every line: training goes on without it.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trimtab/agent.h"

enum { kFeatures = 32, kSamples = 256, kLayers = 2 };

typedef struct {
  double x[kSamples][kFeatures], y[kSamples];
  double w[kFeatures], velocity[kFeatures];
} Model;

typedef struct {
  unsigned long long steps, sleep_us, ring_bytes;
  unsigned long long rank, world_size;
  const char* run;
  const char* ring_dir;
  int act, report;
} Flags;

/* xorshift64*: the same data on every machine. */
static double Uniform(unsigned long long* state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return (double)((*state * 2685821657736338717ULL) >> 11) / 9007199254740992.0 - 0.5;
}

static void InitModel(Model* model) {
  unsigned long long state = 42;
  double truth[kFeatures];
  memset(model, 0, sizeof(*model));
  for (int j = 0; j < kFeatures; ++j) truth[j] = 4 * Uniform(&state);
  for (int i = 0; i < kSamples; ++i) {
    model->y[i] = 0.1 * Uniform(&state);
    for (int j = 0; j < kFeatures; ++j) {
      model->x[i][j] = Uniform(&state);
      model->y[i] += model->x[i][j] * truth[j];
    }
  }
}

/* One step of gradient descent. Returns the loss before it and, in *grad_norm, the norm of its gradient. */
static double TrainStep(Model* model, double learning_rate, double* grad_norm) {
  double gradient[kFeatures] = {0};
  double loss = 0;
  for (int i = 0; i < kSamples; ++i) {
    double error = -model->y[i];
    for (int j = 0; j < kFeatures; ++j) error += model->w[j] * model->x[i][j];
    loss += error * error / kSamples;
    for (int j = 0; j < kFeatures; ++j) gradient[j] += 2 * error * model->x[i][j] / kSamples;
  }
  double squares = 0;
  for (int j = 0; j < kFeatures; ++j) {
    squares += gradient[j] * gradient[j];
    model->velocity[j] = 0.9 * model->velocity[j] + gradient[j];
    model->w[j] -= learning_rate * model->velocity[j];
  }
  *grad_norm = sqrt(squares);
  return loss;
}

static void PutScalar(trimtab_agent* agent, const char* metric, double value) {
  const float narrow = (float)value;
  trimtab_step_put_f32(agent, trimtab_metric_id(metric), &narrow, 0, 0);
}

/* Reports one finished step. What the agent refuses is said once and does not stop the loop. */
static void Report(trimtab_agent* agent, unsigned long long step, double loss, double grad_norm, double learning_rate,
                   const uint8_t* modes) {
  static int complained = 0;
  struct timespec now;
  uint64_t wide_modes[kLayers];
  for (int i = 0; i < kLayers; ++i) wide_modes[i] = modes[i];
  clock_gettime(CLOCK_REALTIME, &now);
  trimtab_step_begin(agent, step, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
  PutScalar(agent, "loss", loss);
  PutScalar(agent, "grad_norm", grad_norm);
  PutScalar(agent, "learning_rate", learning_rate);
  trimtab_step_put_u64(agent, trimtab_metric_id("attention_mode"), wide_modes, kLayers, 0);
  const trimtab_status status = trimtab_step_commit(agent);
  if (status != TRIMTAB_OK && status != TRIMTAB_DISABLED && !complained) {
    fprintf(stderr, "c_trainer: step %llu is not reported: %s\n", step, trimtab_last_error());
    complained = 1;
  }
}

static const char* ModeName(uint8_t mode) {
  static const char* const names[] = {"?", "native", "observe", "stabilized", "paper"};
  return mode < sizeof(names) / sizeof(names[0]) ? names[mode] : "?";
}

static int Number(const char* text, unsigned long long* value) {
  char* end = NULL;
  errno = 0;
  *value = strtoull(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && text[0] != '-';
}

static int Usage(const char* argument) {
  fprintf(stderr,
          "c_trainer: bad argument %s; usage: c_trainer [--steps N] [--run NAME] [--rank N] [--world-size N] [--act] "
          "[--sleep-us N] [--ring-dir DIR] [--ring-bytes N] [--report]\n",
          argument);
  return 2;
}

static int ParseFlags(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const char* name = argv[i];
    if (strcmp(name, "--act") == 0) {
      flags->act = 1;
      continue;
    }
    if (strcmp(name, "--report") == 0) {
      flags->report = 1;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : NULL;
    unsigned long long* number = strcmp(name, "--steps") == 0        ? &flags->steps
                                 : strcmp(name, "--rank") == 0       ? &flags->rank
                                 : strcmp(name, "--world-size") == 0 ? &flags->world_size
                                 : strcmp(name, "--sleep-us") == 0   ? &flags->sleep_us
                                 : strcmp(name, "--ring-bytes") == 0 ? &flags->ring_bytes
                                                                     : NULL;
    if (value != NULL && strcmp(name, "--run") == 0) {
      flags->run = value;
    } else if (value != NULL && strcmp(name, "--ring-dir") == 0) {
      flags->ring_dir = value;
    } else if (value == NULL || number == NULL || !Number(value, number)) {
      return Usage(name);
    }
  }
  if (flags->rank > UINT32_MAX || flags->world_size > UINT32_MAX) return Usage("--rank or --world-size");
  return 0;
}

int main(int argc, char** argv) {
  Flags flags = {.steps = 1000, .world_size = 1};
  const int bad = ParseFlags(argc, argv, &flags);
  if (bad != 0) return bad;

  trimtab_options options = {.struct_size = sizeof(options),
                             .ring_dir = flags.ring_dir,
                             .run = flags.run,
                             .rank = (uint32_t)flags.rank,
                             .world_size = (uint32_t)flags.world_size,
                             .ring_bytes = flags.ring_bytes,
                             .act = flags.act,
                             .info_json = "{\"metadata\":{\"model\":\"least squares\",\"trainer\":\"c_trainer\"}}"};
  trimtab_agent* agent = NULL;
  const trimtab_status opened = trimtab_open(&options, &agent);
  if (opened == TRIMTAB_OK) {
    printf("ring %s\n", trimtab_ring_path(agent));
  } else {
    fprintf(stderr, "c_trainer: training goes on without trimtab: %s\n", trimtab_last_error());
  }
  fflush(stdout);

  static Model model;
  const double learning_rate = 0.2;
  uint8_t modes[kLayers];
  double loss = 0, grad_norm = 0;
  InitModel(&model);
  memset(modes, TRIMTAB_MODE_OBSERVE, sizeof(modes));
  for (unsigned long long step = 1; step <= flags.steps; ++step) {
    uint8_t before[kLayers];
    memcpy(before, modes, sizeof(modes));
    if (trimtab_latch_step(agent, step, modes, kLayers)) {
      for (int i = 0; i < kLayers; ++i) {
        if (modes[i] != before[i]) {
          printf("step %llu: layer %d %s -> %s\n", step, i, ModeName(before[i]), ModeName(modes[i]));
        }
      }
      fflush(stdout);
    }
    loss = TrainStep(&model, learning_rate, &grad_norm);
    Report(agent, step, loss, grad_norm, learning_rate, modes);
    if (flags.report) {
      printf("committed %llu\n", step);
      fflush(stdout);
    }
    if (flags.sleep_us > 0) {
      const struct timespec pause = {(time_t)(flags.sleep_us / 1000000), (long)(flags.sleep_us % 1000000) * 1000};
      nanosleep(&pause, NULL);
    }
  }
  printf("final loss %.9g\n", loss);
  trimtab_close(agent);
  return 0;
}
