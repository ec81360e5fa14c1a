// ControlService over gRPC: a thin edge of Controller and of the loaded policy. Synchronous API; thread-safe.
#ifndef TRIMTAB_SERVER_CONTROL_SERVICE_H_
#define TRIMTAB_SERVER_CONTROL_SERVICE_H_

#include <memory>

#include "server/control/controller.h"
#include "server/policy/policy.h"
#include "trimtab/v1/control.grpc.pb.h"

namespace trimtab::server {

// `controller` and `policy` outlive the service.
std::unique_ptr<v1::ControlService::Service> CreateControlService(Controller* controller, const Policy* policy);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_SERVICE_H_
