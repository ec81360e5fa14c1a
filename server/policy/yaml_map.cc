#include "server/policy/yaml_map.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trimtab::server {
namespace {

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// yaml-cpp tags plain scalars "?" and quoted ones "!".
bool IsPlain(const YAML::Node& node) { return node.IsScalar() && node.Tag() != "!"; }

std::string Shown(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) return "a list";
  if (!node.IsScalar()) return "nothing";
  std::string text = node.Scalar().substr(0, 40);
  for (char& c : text) {
    if (!absl::ascii_isprint(c)) c = '?';
  }
  return absl::StrCat(IsPlain(node) ? "'" : "the text '", text, "'");
}

// Shortest text that reads back as the same number.
std::string Plain(double x) { return absl::StrCat(x); }

}  // namespace

void Problems::Add(const YAML::Mark& mark, std::string message) {
  if (list_.size() >= kMax) return;
  v1::PolicyProblem p;
  if (!mark.is_null()) {
    p.set_line(static_cast<uint32_t>(mark.line + 1));
    p.set_column(static_cast<uint32_t>(mark.column + 1));
  }
  p.set_message(std::move(message));
  list_.push_back(std::move(p));
}

std::string DidYouMean(absl::string_view word, absl::Span<const absl::string_view> candidates) {
  if (word.size() > 64) return "";
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  absl::string_view found;
  for (absl::string_view c : candidates) {
    const size_t d = EditDistance(word, c);
    if (d < best) {
      best = d;
      found = c;
    }
  }
  return found.empty() ? "" : absl::StrCat(" Did you mean '", found, "'?");
}

YamlMap::YamlMap(const YAML::Node& node, std::string what, Problems* problems, std::optional<YAML::Mark> mark)
    : what_(std::move(what)),
      problems_(problems),
      mark_(mark.value_or(node.Mark())),
      problems_before_(problems->list().size()) {
  if (!node.IsMap()) {
    problems_->Add(mark_, absl::StrCat(what_, " must be a mapping (key: value), not ", Shown(node), "."));
    return;
  }
  for (const auto& item : node) {
    if (!item.first.IsScalar()) {
      problems_->Add(item.first.Mark(), absl::StrCat("A key of ", what_, " must be a word."));
      continue;
    }
    const std::string& key = item.first.Scalar();
    if (std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first == key; })) {
      problems_->Add(item.first.Mark(), absl::StrCat("Key '", key, "' comes twice in ", what_, "."));
      continue;
    }
    entries_.push_back({key, {item.first, item.second}});
  }
}

std::optional<YAML::Node> YamlMap::Get(absl::string_view key) {
  asked_.emplace_back(key);
  for (const auto& [name, nodes] : entries_) {
    if (name == key) return nodes.second;
  }
  return std::nullopt;
}

std::optional<YAML::Node> YamlMap::Need(absl::string_view key) {
  std::optional<YAML::Node> node = Get(key);
  if (!node) problems_->Add(mark_, absl::StrCat(what_, " needs '", key, "'."));
  return node;
}

void YamlMap::Number(absl::string_view key, double min, double max, double* value) {
  std::optional<double> read;
  Number(key, min, max, &read);
  if (read) *value = *read;
}

void YamlMap::Number(absl::string_view key, double min, double max, std::optional<double>* value) {
  const std::optional<YAML::Node> node = Get(key);
  if (!node) return;
  double x = 0;
  if (!IsPlain(*node) || !absl::SimpleAtod(node->Scalar(), &x) || !std::isfinite(x)) {
    problems_->Add(node->Mark(), absl::StrCat("'", key, "' must be a number, not ", Shown(*node), "."));
  } else if (x < min || x > max) {
    problems_->Add(node->Mark(), absl::StrCat("'", key, "' must lie between ", Plain(min), " and ", Plain(max),
                                              ", not ", node->Scalar(), "."));
  } else {
    *value = x;
  }
}

void YamlMap::Count(absl::string_view key, uint64_t min, uint64_t max, uint32_t* value) {
  uint64_t wide = *value;
  Count(key, min, std::min<uint64_t>(max, UINT32_MAX), &wide);
  *value = static_cast<uint32_t>(wide);
}

void YamlMap::Count(absl::string_view key, uint64_t min, uint64_t max, uint64_t* value) {
  const std::optional<YAML::Node> node = Get(key);
  if (!node) return;
  uint64_t n = 0;
  if (!IsPlain(*node) || !absl::SimpleAtoi(node->Scalar(), &n)) {
    problems_->Add(node->Mark(), absl::StrCat("'", key, "' must be a whole number, not ", Shown(*node), "."));
  } else if (n < min || n > max) {
    problems_->Add(node->Mark(),
                   absl::StrCat("'", key, "' must lie between ", min, " and ", max, ", not ", node->Scalar(), "."));
  } else {
    *value = n;
  }
}

void YamlMap::Flag(absl::string_view key, bool* value) {
  const std::optional<YAML::Node> node = Get(key);
  if (!node) return;
  const std::string text = IsPlain(*node) ? node->Scalar() : "";
  if (text == "true") {
    *value = true;
  } else if (text == "false") {
    *value = false;
  } else {
    problems_->Add(node->Mark(), absl::StrCat("'", key, "' must be true or false, not ", Shown(*node), "."));
  }
}

void YamlMap::Text(absl::string_view key, size_t max_bytes, std::string* value) {
  const std::optional<YAML::Node> node = Get(key);
  if (!node) return;
  if (!node->IsScalar()) {
    problems_->Add(node->Mark(), absl::StrCat("'", key, "' must be text, not ", Shown(*node), "."));
  } else if (node->Scalar().size() > max_bytes) {
    problems_->Add(node->Mark(), absl::StrCat("'", key, "' is longer than ", max_bytes, " bytes."));
  } else {
    *value = node->Scalar();
  }
}

std::optional<size_t> YamlMap::Word(absl::string_view key, absl::Span<const absl::string_view> words) {
  const std::optional<YAML::Node> node = Get(key);
  return node ? WordOf(*node, key, words, problems_) : std::nullopt;
}

void YamlMap::Finish() {
  std::vector<absl::string_view> known(asked_.begin(), asked_.end());
  for (const auto& [key, nodes] : entries_) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    problems_->Add(nodes.first.Mark(),
                   absl::StrCat("Unknown key '", key.substr(0, 64), "' in ", what_, ".", DidYouMean(key, known)));
  }
}

std::optional<size_t> WordOf(const YAML::Node& node, absl::string_view what, absl::Span<const absl::string_view> words,
                             Problems* problems) {
  if (node.IsScalar()) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (node.Scalar() == words[i]) return i;
    }
  }
  problems->Add(node.Mark(), absl::StrCat("'", what, "' must be one of ", absl::StrJoin(words, ", "), ", not ",
                                          Shown(node), ".", node.IsScalar() ? DidYouMean(node.Scalar(), words) : ""));
  return std::nullopt;
}

}  // namespace trimtab::server
