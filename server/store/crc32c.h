// CRC-32C (Castagnoli), as in iSCSI and RocksDB: polynomial 0x1EDC6F41 reflected, initial and final inversion.
#ifndef TRIMTAB_SERVER_STORE_CRC32C_H_
#define TRIMTAB_SERVER_STORE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace trimtab::server {

// Checksum of what `crc` covers followed by `data`. Start with crc = 0. About 1 ns per 8 bytes with SSE 4.2, which is
// looked for at run time; a table otherwise.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_CRC32C_H_
