// Reads one YAML mapping strictly: every key is asked for or refused, every value has a type and a range, and each
// problem carries its line and column. yaml-cpp's exceptions stop in CheckPolicyYaml.
#ifndef TRIMTAB_SERVER_POLICY_YAML_MAP_H_
#define TRIMTAB_SERVER_POLICY_YAML_MAP_H_

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trimtab/v1/control.pb.h"

namespace trimtab::server {

// Collects problems up to a bound.
class Problems {
 public:
  static constexpr size_t kMax = 100;
  void Add(const YAML::Mark& mark, std::string message);
  const std::vector<v1::PolicyProblem>& list() const { return list_; }
  bool empty() const { return list_.empty(); }
  std::vector<v1::PolicyProblem> Take() { return std::move(list_); }

 private:
  std::vector<v1::PolicyProblem> list_;
};

// " Did you mean 'x'?" for the nearest candidate within a third of the word's length (at least 2 edits), else "".
std::string DidYouMean(absl::string_view word, absl::Span<const absl::string_view> candidates);

class YamlMap {
 public:
  // `what` names the mapping in messages ("rule", "detector threshold"). Reports a node that is no mapping, and keys
  // that come twice.
  // Problems of the mapping as a whole are placed at `mark`, else where the node begins.
  YamlMap(const YAML::Node& node, std::string what, Problems* problems, std::optional<YAML::Mark> mark = std::nullopt);

  // The value of `key`, if there. Asking for a key makes it known.
  std::optional<YAML::Node> Get(absl::string_view key);
  // Like Get, but its absence is a problem.
  std::optional<YAML::Node> Need(absl::string_view key);

  // Each leaves *value alone when the key is absent, and reports a value of the wrong type or outside [min, max].
  void Number(absl::string_view key, double min, double max, double* value);
  void Number(absl::string_view key, double min, double max, std::optional<double>* value);
  void Count(absl::string_view key, uint64_t min, uint64_t max, uint32_t* value);
  void Count(absl::string_view key, uint64_t min, uint64_t max, uint64_t* value);
  void Flag(absl::string_view key, bool* value);
  void Text(absl::string_view key, size_t max_bytes, std::string* value);
  // Index into `words`; reports an unknown word with a suggestion.
  std::optional<size_t> Word(absl::string_view key, absl::Span<const absl::string_view> words);

  // Reports the keys that nobody asked for. Call last.
  void Finish();

  const YAML::Mark& mark() const { return mark_; }
  // Whether a problem was reported since this mapping was opened.
  bool refused() const { return problems_->list().size() > problems_before_; }
  const std::string& what() const { return what_; }
  Problems* problems() { return problems_; }

 private:
  std::string what_;
  Problems* problems_;
  YAML::Mark mark_;
  size_t problems_before_ = 0;
  std::vector<std::pair<std::string, std::pair<YAML::Node, YAML::Node>>> entries_;  // key text, (key, value)
  std::vector<std::string> asked_;
};

// Index of a scalar among `words`; reports anything else.
std::optional<size_t> WordOf(const YAML::Node& node, absl::string_view what, absl::Span<const absl::string_view> words,
                             Problems* problems);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_YAML_MAP_H_
