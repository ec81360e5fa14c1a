// QueryService over gRPC. Synchronous API: reads are few, and a blocking Write is the flow control that a long series
// needs. Readers and followers have bounds; above them a call gets RESOURCE_EXHAUSTED. Thread-safe.
#ifndef TRIMTAB_SERVER_QUERY_QUERY_SERVICE_H_
#define TRIMTAB_SERVER_QUERY_QUERY_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "server/registry/registry.h"
#include "server/store/store.h"

namespace trimtab::server {

struct QueryOptions {
  size_t max_readers = 32;    // ReadSeries and ListEvents at once
  size_t max_followers = 64;  // ListEvents with follow
  std::string version;
  std::string data_dir;
  std::string http_address;  // "" when there is none
  std::map<std::string, uint64_t> limits;
};

class QueryService {
 public:
  virtual ~QueryService() = default;
  // `registry` and `store` outlive the service; it listens to the store's events from here on.
  static std::unique_ptr<QueryService> Create(QueryOptions options, Registry* registry, Store* store);
  virtual grpc::Service* service() = 0;
  // Ends the streams of followers with UNAVAILABLE; call before the gRPC server's Shutdown.
  virtual void Shutdown() = 0;
  virtual uint64_t refused() const = 0;  // calls over the bounds
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_QUERY_QUERY_SERVICE_H_
