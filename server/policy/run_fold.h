// Waits for the ranks of a step and hands the folded steps on in order.
//
// A step is complete when every live rank has reported it or a later one; it is handed on without the rest when the
// fastest rank leads by wait_steps_max (kJoinWaitSteps while ranks of the world have not joined yet). Memory: at most
// wait_steps_max + 1 folded steps. Not thread-safe.
#ifndef TRIMTAB_SERVER_POLICY_RUN_FOLD_H_
#define TRIMTAB_SERVER_POLICY_RUN_FOLD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/policy/signals.h"

namespace trimtab::server {

class RunFold {
 public:
  static constexpr uint64_t kJoinWaitSteps = 16;

  explicit RunFold(size_t wait_steps_max) : wait_steps_max_(wait_steps_max < 1 ? 1 : wait_steps_max) {}

  // Continues where a server before this one stopped: steps up to `step` are evaluated, and these ranks were there.
  void Restore(uint64_t step, const std::map<uint32_t, uint64_t>& incarnations);
  // Incarnations of the first `max` live ranks, for Restore.
  std::map<uint32_t, uint64_t> Incarnations(size_t max) const;

  void Join(uint32_t rank, uint64_t incarnation, uint32_t world_size, const std::vector<v1::Aggregation>& aggregation);
  // `finished`: it ended as it should; otherwise it is missing until it comes back.
  void Leave(uint32_t rank, uint64_t incarnation, bool finished);

  enum class Added { kQueued, kRepeat, kLate, kUnknownRank, kRestarted };
  // kRestarted: a new incarnation of a rank went back before a step that this rank had reported and that is folded.
  // What was pending is gone; the run's history starts again at this step.
  Added Add(uint32_t rank, uint64_t incarnation, StepCells cells);

  // The next complete step, if any. `everything`: also incomplete ones (at the end of a run).
  std::optional<StepCells> Next(bool everything = false);

  uint32_t live() const { return live_; }
  uint32_t world_size() const { return world_size_; }
  // Ranks of the world that are neither live nor finished, ascending, at most `max`; and how many there are.
  std::vector<uint32_t> Missing(size_t max, uint32_t* count) const;

 private:
  struct RankState {
    uint64_t incarnation = 0;
    std::optional<uint64_t> last_step;
    std::optional<uint64_t> step_before;  // the last one of the incarnation before
    bool live = false, finished = false;
  };
  void Restart(uint32_t first_rank);
  bool Joining() const { return ranks_.size() < world_size_; }
  // Steps below are complete. Constant time: a step is taken as complete when as many ranks reported it as are live.
  uint64_t CompleteEnd() const;
  void FindComplete();

  size_t wait_steps_max_;
  uint32_t world_size_ = 0;
  uint32_t live_ = 0;
  std::map<uint32_t, RankState> ranks_;
  std::vector<v1::Aggregation> aggregation_;
  std::map<uint64_t, StepCells> pending_;
  std::optional<uint64_t> folded_;
  uint64_t highest_ = 0;
  uint64_t complete_end_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_RUN_FOLD_H_
