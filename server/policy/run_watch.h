// One run under the policy: its fold, its evaluator, and what was asked for it. Used by the engine's thread only.
#ifndef TRIMTAB_SERVER_POLICY_RUN_WATCH_H_
#define TRIMTAB_SERVER_POLICY_RUN_WATCH_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/model/roles.h"
#include "server/policy/evaluator.h"
#include "server/policy/run_fold.h"

namespace trimtab::server {

// What a rank says of itself, as far as the policy cares.
struct RankFacts {
  uint32_t world_size = 0;
  bool act = false;
  std::vector<v1::KernelMode> modes;
  std::vector<std::string> layer_names;
};
RankFacts FactsOf(const v1::RankInfo& info);

class RunWatch {
 public:
  static constexpr size_t kIncarnationsKept = 64;
  static constexpr size_t kPlansKept = 64;
  static constexpr uint64_t kSaveSteps = 1000;

  RunWatch(const Policy* policy, const SignalTable* table, size_t fold_wait_steps_max)
      : fold_(fold_wait_steps_max), evaluator_(policy, table) {}

  void Join(uint32_t rank, uint64_t incarnation, const RankFacts& facts,
            const std::vector<v1::Aggregation>& aggregation);
  void Update(uint32_t rank, const RankFacts& facts);
  std::vector<Decision> Leave(uint32_t rank, uint64_t incarnation, LeaveReason reason, int64_t now_unix_nanos);
  std::vector<Decision> Step(uint32_t rank, uint64_t incarnation, StepCells cells, int64_t now_unix_nanos);
  std::vector<Decision> Look(int64_t now_unix_nanos);

  void PlanAccepted(uint64_t plan, const Decision& decision);
  void PlanRefused(const Decision& decision, bool try_again);
  // An event of the controller about a plan that this run may have asked for.
  void OnPlanEvent(const std::string& kind, uint64_t plan, uint64_t step);

  // Something that a restarted server must know changed, or kSaveSteps went by.
  bool NeedsSave();
  nlohmann::json Save() const;
  // Throws nlohmann::json::exception on a value of another shape.
  void Load(const nlohmann::json& state);

  bool idle() const { return fold_.live() == 0; }
  uint64_t active_alarms() const { return evaluator_.active_alarms(); }
  uint64_t steps_evaluated() const { return steps_evaluated_; }
  uint64_t steps_late() const { return steps_late_; }
  bool act() const;

 private:
  void TakeReady(bool everything, int64_t now_unix_nanos, std::vector<Decision>* out);
  void RefreshFacts();

  RunFold fold_;
  RunEvaluator evaluator_;
  std::map<uint32_t, RankFacts> ranks_;
  struct Asked {
    size_t rule;
    std::vector<uint32_t> layers;
  };
  std::map<uint64_t, Asked> plans_;  // the newest kPlansKept
  uint64_t steps_evaluated_ = 0, steps_late_ = 0, steps_saved_ = 0;
  bool changed_ = false;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_RUN_WATCH_H_
