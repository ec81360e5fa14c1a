// ControlService as a client sees it, over gRPC in one process.
#include "server/control/service.h"

#include <grpcpp/grpcpp.h>

#include <thread>

#include "server/policy/policy_parser.h"
#include "tests/unit/server/control/control_fixture.h"

namespace trimtab::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class ServiceTest : public ControlFixture {
 protected:
  void Serve(FakeJob* job) {
    Start(job);
    policy_ = *ParsePolicy(DefaultPolicyYaml());
    service_ = CreateControlService(controller_.get(), &policy_);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ControlService::NewStub(server_->InProcessChannel({}));
  }
  ~ServiceTest() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  Policy policy_;
  std::unique_ptr<v1::ControlService::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ControlService::Stub> stub_;
};

TEST_F(ServiceTest, SwitchReturnsWhenItIsDecidedOrAtOnce) {
  FakeJob job(kRun, 2, 2, true);
  Serve(&job);
  job.Step(5);
  v1::SwitchRequest request;
  request.set_run(kRun);
  request.set_mode(v1::KERNEL_MODE_STABILIZED);
  v1::PlanResponse response;
  std::atomic<bool> stop{false};
  std::thread steps([&] {
    while (!stop) job.Step();
  });
  {
    grpc::ClientContext context;
    const grpc::Status s = stub_->Switch(&context, request, &response);
    ASSERT_TRUE(s.ok()) << s.error_message();
    EXPECT_TRUE(response.plan().state() == v1::PLAN_STATE_COMMITTING ||
                response.plan().state() == v1::PLAN_STATE_APPLIED);
    EXPECT_GT(response.plan().effective_step(), 0u);
  }
  while (PlanNow(response.plan().id()).state() != v1::PLAN_STATE_APPLIED) std::this_thread::yield();
  stop = true;
  steps.join();
  {
    v1::RollbackRequest rollback;
    rollback.set_run(kRun);
    rollback.set_no_wait(true);
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Rollback(&context, rollback, &response).ok());
    EXPECT_EQ(response.plan().state(), v1::PLAN_STATE_PREPARING);
  }
  v1::ListPlansRequest list;
  list.set_run(kRun);
  v1::ListPlansResponse plans;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ListPlans(&context, list, &plans).ok());
  EXPECT_THAT(plans.plans(), SizeIs(2));
}

TEST_F(ServiceTest, ARefusedPlanIsAnAnswerARefusedRequestAnError) {
  FakeJob job(kRun, 2, 2, true);
  Serve(&job);
  job.set_habit(1, FakeJob::Habit::kRefuses);
  job.Step(5);
  v1::SwitchRequest request;
  request.set_run(kRun);
  request.set_mode(v1::KERNEL_MODE_STABILIZED);
  v1::PlanResponse response;
  std::atomic<bool> stop{false};
  std::thread steps([&] {
    while (!stop) job.Step();
  });
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Switch(&context, request, &response).ok());
    EXPECT_EQ(response.plan().state(), v1::PLAN_STATE_REFUSED);
    EXPECT_THAT(response.plan().outcome(), HasSubstr("rank 1 refused"));
  }
  stop = true;
  steps.join();
  request.add_layers(9);
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Switch(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::ApproveRequest approve;
  approve.set_run(kRun);
  grpc::ClientContext second;
  EXPECT_EQ(stub_->Approve(&second, approve, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, APatientCallerMayGoAway) {
  FakeJob job(kRun, 1, 2, true);
  Serve(&job);
  job.set_habit(0, FakeJob::Habit::kSilent);
  job.Step(5);
  v1::SwitchRequest request;
  request.set_run(kRun);
  request.set_mode(v1::KERNEL_MODE_STABILIZED);
  v1::PlanResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  EXPECT_EQ(stub_->Switch(&context, request, &response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_PREPARING);  // the plan goes on
  Advance(31 * kSecond);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_REFUSED);
}

TEST_F(ServiceTest, ChecksAndShowsPolicies) {
  FakeJob job(kRun, 1, 2, true);
  Serve(&job);
  v1::CheckPolicyRequest request;
  request.set_yaml("version: 1\nrules:\n  - {name: a, signal: loss, detectr: nonfinite}\n");
  v1::CheckPolicyResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->CheckPolicy(&context, request, &response).ok());
  EXPECT_FALSE(response.ok());
  ASSERT_GE(response.problems_size(), 1);
  EXPECT_EQ(response.problems(0).line(), 3u);
  request.set_yaml(DefaultPolicyYaml());
  grpc::ClientContext second;
  ASSERT_TRUE(stub_->CheckPolicy(&second, request, &response).ok());
  EXPECT_TRUE(response.ok());
  EXPECT_THAT(response.summary(), HasSubstr("logit_runaway: max_attention_logit above 200, 3 samples in a row"));
  v1::GetPolicyResponse loaded;
  grpc::ClientContext third;
  ASSERT_TRUE(stub_->GetPolicy(&third, {}, &loaded).ok());
  EXPECT_EQ(loaded.yaml(), DefaultPolicyYaml());
  EXPECT_EQ(loaded.summary(), response.summary());
}

}  // namespace
}  // namespace trimtab::server
