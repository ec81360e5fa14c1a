// The folder of a store: its format record, and who holds its lock.
//
//   <data-dir>/FORMAT    "trimtab-store <version>\n", written before anything else
//   <data-dir>/rocksdb/  the database
#ifndef TRIMTAB_SERVER_STORE_DATA_FOLDER_H_
#define TRIMTAB_SERVER_STORE_DATA_FOLDER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trimtab::server {

// Makes the folder (mode 0700) when absent, writes FORMAT when the folder is new, and checks it otherwise.
// FAILED_PRECONDITION: a newer format, or a database without a FORMAT file. The message says what to do.
absl::Status PrepareDataFolder(const std::string& path, uint32_t format_version);

// "process 4711 (trimtabd)" for the process that holds a POSIX lock on `lock_file`, "another process" when it cannot
// be found out. Must not be called by the process that itself holds the lock: closing the file would release it.
std::string LockHolder(const std::string& lock_file);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_DATA_FOLDER_H_
