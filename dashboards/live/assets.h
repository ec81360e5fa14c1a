// The live page's files, compiled into the binary.
#ifndef TRIMTAB_DASHBOARDS_LIVE_ASSETS_H_
#define TRIMTAB_DASHBOARDS_LIVE_ASSETS_H_

#include <string_view>

#include "absl/types/span.h"

namespace trimtab::live {

struct Asset {
  std::string_view path;  // "/app.js"
  std::string_view content_type;
  std::string_view etag;  // quoted, from the contents
  std::string_view body;
};

// Static storage; valid for the life of the process.
absl::Span<const Asset> Assets();

}  // namespace trimtab::live
#endif  // TRIMTAB_DASHBOARDS_LIVE_ASSETS_H_
