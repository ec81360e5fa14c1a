// Collects ranks that joined, left or were lost, so that a world of thousands makes a few events and not thousands.
#ifndef TRIMTAB_SERVER_REGISTRY_RANK_NEWS_H_
#define TRIMTAB_SERVER_REGISTRY_RANK_NEWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trimtab/v1/common.pb.h"

namespace trimtab::server {

inline constexpr uint32_t kSmallWorld = 8;  // told one by one
inline constexpr size_t kRanksPerEvent = 64;

class RankNews {
 public:
  RankNews(const char* kind, const char* verb, v1::Severity severity) : kind_(kind), verb_(verb), severity_(severity) {}

  // `detail` is shown when the rank is told alone: "on node3 (pid 4711)". Returns an event when it is time for one.
  std::optional<v1::Event> Add(uint32_t rank, uint32_t world_size, const std::string& detail);
  // What is left over.
  std::optional<v1::Event> Flush(uint32_t world_size);

 private:
  const char* kind_;
  const char* verb_;
  v1::Severity severity_;
  std::vector<uint32_t> ranks_;
  std::string detail_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_REGISTRY_RANK_NEWS_H_
