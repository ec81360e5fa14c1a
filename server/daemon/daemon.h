// A whole server in one object: store → ingest → registry → policy → control → query → export → http.
#ifndef TRIMTAB_SERVER_DAEMON_DAEMON_H_
#define TRIMTAB_SERVER_DAEMON_DAEMON_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/config/config.h"

namespace trimtab::server {

class Daemon {
 public:
  virtual ~Daemon() = default;  // shuts down

  // Whether the files that `config` names (the policy) are good. INVALID_ARGUMENT: one line, file:line:column.
  static absl::Status Check(const Config& config);

  // Serves on return, after the ready file is written. Errors name the cause and the fix: ports taken, folder locked.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config, const std::string& version);

  // Ends the streams after everything that was read is durable and acknowledged. Idempotent.
  virtual void Shutdown() = 0;

  // Not OK when the server cannot go on and sent itself SIGTERM: the store is broken until it is opened again.
  virtual absl::Status failure() const = 0;

  virtual std::string grpc_address() const = 0;
  virtual std::string http_address() const = 0;  // "" when there is none
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_DAEMON_DAEMON_H_
