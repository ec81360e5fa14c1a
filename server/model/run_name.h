// Which run names are accepted, and how any name is shown to a person.
#ifndef TRIMTAB_SERVER_MODEL_RUN_NAME_H_
#define TRIMTAB_SERVER_MODEL_RUN_NAME_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trimtab::server {

// A run name is 1 to 255 bytes of well-formed UTF-8 without control characters (U+0000–001F, U+007F–009F). Slashes,
// quotes and spaces are fine: a name is only ever data in the catalog, never a path or a part of a key.
// INVALID_ARGUMENT says what is wrong and where.
absl::Status ValidateRunName(absl::string_view name);

// `name` in double quotes, C-escaped, at most `max_bytes` of it; safe in a log line or a one-line message.
std::string QuoteName(absl::string_view name, size_t max_bytes = 80);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_MODEL_RUN_NAME_H_
