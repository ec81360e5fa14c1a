#include "server/control/service.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/status/status.h"
#include "server/policy/policy_parser.h"

namespace trimtab::server {
namespace {

// How often a waiting call looks whether its client is still there.
constexpr absl::Duration kWaitSlice = absl::Milliseconds(200);
// Longer than any deadline of a phase: the controller always decides before.
constexpr absl::Duration kWaitMax = absl::Minutes(15);

class Service final : public v1::ControlService::Service {
 public:
  Service(Controller* controller, const Policy* policy) : controller_(controller), policy_(policy) {}

  grpc::Status Switch(grpc::ServerContext* context, const v1::SwitchRequest* request,
                      v1::PlanResponse* response) override {
    return Answer(context, controller_->Switch(*request), request->no_wait(), response);
  }

  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        v1::PlanResponse* response) override {
    return Answer(context, controller_->Rollback(*request), request->no_wait(), response);
  }

  grpc::Status Approve(grpc::ServerContext* context, const v1::ApproveRequest* request,
                       v1::PlanResponse* response) override {
    return Answer(context, controller_->Approve(*request), request->no_wait(), response);
  }

  grpc::Status ListPlans(grpc::ServerContext*, const v1::ListPlansRequest* request,
                         v1::ListPlansResponse* response) override {
    auto plans = controller_->ListPlans(request->run());
    if (!plans.ok()) return ToGrpc(plans.status());
    for (v1::Plan& plan : *plans) *response->add_plans() = std::move(plan);
    return grpc::Status::OK;
  }

  grpc::Status CheckPolicy(grpc::ServerContext*, const v1::CheckPolicyRequest* request,
                           v1::CheckPolicyResponse* response) override {
    PolicyCheck check = CheckPolicyYaml(request->yaml());
    response->set_ok(check.problems.empty());
    if (check.problems.empty()) response->set_summary(PolicySummary(check.policy));
    for (v1::PolicyProblem& p : check.problems) *response->add_problems() = std::move(p);
    return grpc::Status::OK;
  }

  grpc::Status GetPolicy(grpc::ServerContext*, const v1::GetPolicyRequest*, v1::GetPolicyResponse* response) override {
    response->set_yaml(policy_->yaml);
    response->set_summary(PolicySummary(*policy_));
    return grpc::Status::OK;
  }

 private:
  grpc::Status Answer(grpc::ServerContext* context, absl::StatusOr<v1::Plan> plan, bool no_wait,
                      v1::PlanResponse* response) {
    if (!plan.ok()) return ToGrpc(plan.status());
    const absl::Time until = absl::Now() + kWaitMax;
    while (!no_wait) {
      absl::StatusOr<v1::Plan> decided = controller_->WaitDecided(plan->id(), kWaitSlice);
      if (decided.ok()) {
        plan = std::move(decided);
        break;
      }
      if (!absl::IsDeadlineExceeded(decided.status())) return ToGrpc(decided.status());
      if (context->IsCancelled())
        return grpc::Status(grpc::StatusCode::CANCELLED, "The caller went away; the plan goes on.");
      if (absl::Now() > until) return ToGrpc(decided.status());
    }
    *response->mutable_plan() = *std::move(plan);
    return grpc::Status::OK;
  }

  Controller* const controller_;
  const Policy* const policy_;
};

}  // namespace

std::unique_ptr<v1::ControlService::Service> CreateControlService(Controller* controller, const Policy* policy) {
  return std::make_unique<Service>(controller, policy);
}

}  // namespace trimtab::server
