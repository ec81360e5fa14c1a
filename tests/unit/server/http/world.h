// A store and a registry with one run in them, fed as ingest feeds them.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_HTTP_WORLD_H_
#define TRIMTAB_TESTS_UNIT_SERVER_HTTP_WORLD_H_

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/registry/registry.h"
#include "server/store/store.h"

namespace trimtab::server {

class World {
 public:
  static constexpr uint32_t kLoss = 1, kLogit = 2, kSigma = 3;  // metric ids
  static constexpr uint32_t kLayers = 2, kHeads = 3;

  World();
  ~World();

  Registry* registry() { return registry_.get(); }
  Store* store() { return store_.get(); }

  // Registers rank 0 of a run of that name.
  void Join(const std::string& run, uint64_t incarnation = 1);
  // Stores one step durably, then tells the registry. Logit of (layer, head) is 100 * layer + head + step.
  void Step(const std::string& run, uint64_t step, float loss, uint64_t incarnation = 1);
  static float Logit(uint64_t step, uint32_t layer, uint32_t head);
  void Event(const std::string& run, const std::string& message, const std::string& evidence_json);

 private:
  std::filesystem::path folder_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Registry> registry_;
  uint64_t sequence_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_HTTP_WORLD_H_
