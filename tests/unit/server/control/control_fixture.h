// A controller over the real store, a job of fake ranks, and a clock that the test moves.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_CONTROL_CONTROL_FIXTURE_H_
#define TRIMTAB_TESTS_UNIT_SERVER_CONTROL_CONTROL_FIXTURE_H_

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/server/control/fake_job.h"
#include "tests/unit/server/policy/test_store.h"

namespace trimtab::server {

class ControlFixture : public ::testing::Test {
 protected:
  static constexpr char kRun[] = "run/1";
  static constexpr int64_t kSecond = 1'000'000'000;

  void Start(FakeJob* job, ControllerOptions options = {}) {
    job_ = job;
    options.tick_seconds = 0;
    options.now_unix_nanos = [this] { return now_.load(); };
    options_ = options;
    auto controller = Controller::Create(options, job, store_.get(), store_.get());
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
    job->ConnectTo(controller_.get());
    controller_->Drain();
  }
  // kill -9 as the controller sees it: it is gone, the store is opened again, the couriers come back or not.
  void RestartServer(bool reconnect = true) {
    job_->ConnectTo(nullptr);
    controller_.reset();
    store_.Reopen();
    auto controller = Controller::Create(options_, job_, store_.get(), store_.get());
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
    if (reconnect) Reconnect();
  }
  void Reconnect() {
    job_->ConnectTo(controller_.get());
    controller_->Drain();
  }
  void Advance(int64_t nanos) {
    now_ += nanos;
    controller_->Tick();
  }
  absl::StatusOr<v1::Plan> Switch(std::vector<uint32_t> layers = {}, v1::KernelMode mode = v1::KERNEL_MODE_STABILIZED) {
    v1::SwitchRequest r;
    r.set_run(kRun);
    r.set_mode(mode);
    r.mutable_layers()->Add(layers.begin(), layers.end());
    r.set_actor("alice");
    r.set_reason("try it");
    return controller_->Switch(r);
  }
  absl::StatusOr<v1::Plan> Rollback() {
    v1::RollbackRequest r;
    r.set_run(kRun);
    r.set_actor("alice");
    return controller_->Rollback(r);
  }
  v1::Plan PlanNow(uint64_t id) {
    auto plans = controller_->ListPlans("");
    EXPECT_TRUE(plans.ok());
    for (const v1::Plan& p : *plans) {
      if (p.id() == id) return p;
    }
    ADD_FAILURE() << "no plan " << id;
    return {};
  }
  std::string LastMessage(const std::string& kind) {
    const auto events = store_.Events(kind);
    return events.empty() ? "" : events.back().message();
  }

  std::atomic<int64_t> now_{1'000'000 * kSecond};
  TestStore store_;
  ControllerOptions options_;
  FakeJob* job_ = nullptr;
  std::unique_ptr<Controller> controller_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_CONTROL_CONTROL_FIXTURE_H_
