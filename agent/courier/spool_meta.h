// The meta file of a spooled channel: a checksummed SpoolMeta.
#ifndef TRIMTAB_AGENT_COURIER_SPOOL_META_H_
#define TRIMTAB_AGENT_COURIER_SPOOL_META_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/courier/spool.pb.h"

namespace trimtab::courier {

// Replaces `path` as a whole; the old file stays when it fails. `sync` waits for the disk.
absl::Status WriteSpoolMeta(const std::string& path, const SpoolMeta& meta, bool sync);
// NOT_FOUND, or DATA_LOSS when it is damaged or of an unknown version.
absl::StatusOr<SpoolMeta> ReadSpoolMeta(const std::string& path);

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_SPOOL_META_H_
