#include "server/store/catalog.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/model/run_name.h"
#include "server/store/keys.h"

namespace trimtab::server {
namespace {

constexpr char kRunRecordVersion = 1;
constexpr size_t kNamesInMessage = 5;

}  // namespace

CatalogIncarnation* CatalogRun::Find(uint32_t rank, uint64_t incarnation, uint32_t* order) {
  const auto found = ranks.find(rank);
  if (found == ranks.end()) return nullptr;
  // Newest first: it is nearly always the one.
  for (size_t i = found->second.size(); i-- > 0;) {
    if (found->second[i].incarnation != incarnation) continue;
    *order = static_cast<uint32_t>(i);
    return &found->second[i];
  }
  return nullptr;
}

const v1::MetricDescriptor* CatalogRun::FindMetric(const std::string& name) const {
  for (const auto& [id, metric] : metrics) {
    if (metric.name() == name) return &metric;
  }
  return nullptr;
}

absl::Status Catalog::UnknownRun(const std::string& run) const {
  std::string message = absl::StrCat("there is no run ", QuoteName(run));
  size_t shown = 0;
  for (const auto& [name, entry] : runs) {
    if (shown == kNamesInMessage) {
      absl::StrAppend(&message, " and ", runs.size() - shown, " more");
      break;
    }
    absl::StrAppend(&message, shown == 0 ? "; known: " : ", ", QuoteName(name));
    ++shown;
  }
  if (runs.empty()) absl::StrAppend(&message, "; none has reported yet");
  return absl::NotFoundError(message);
}

std::string EncodeRunRecord(const std::string& name, int64_t first_seen_unix_nanos) {
  std::string value(1, kRunRecordVersion);
  AppendBigEndian64(&value, static_cast<uint64_t>(first_seen_unix_nanos));
  return value + name;
}

absl::Status DecodeRunRecord(absl::string_view value, std::string* name, int64_t* first_seen_unix_nanos) {
  if (value.size() < 10 || value[0] != kRunRecordVersion) return absl::DataLossError("run record is damaged");
  *first_seen_unix_nanos = static_cast<int64_t>(ReadBigEndian64(value.substr(1)));
  *name = std::string(value.substr(9));
  return absl::OkStatus();
}

absl::Status CheckSameMetric(const v1::MetricDescriptor& known, const v1::MetricDescriptor& offered) {
  if (known.name() == offered.name() && known.dtype() == offered.dtype() &&
      std::equal(known.axes().begin(), known.axes().end(), offered.axes().begin(), offered.axes().end())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("metric id ", known.id(), " is ", QuoteName(known.name()), " in this run and ",
                   QuoteName(offered.name()), " (or another dtype or axes) at this rank; use one agent version a run"));
}

}  // namespace trimtab::server
