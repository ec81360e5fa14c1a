// The disk fills up under a server: steps that cannot be stored are not acknowledged, the server stays up, and once
// there is room it stores and acknowledges them. A limit on the size of a file (RLIMIT_FSIZE) stands for the disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "absl/time/clock.h"
#include "server/store/store.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/server_process.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"
#include "tests/unit/server/support/test_courier.h"
#include "tests/unit/server/support/test_server.h"
#include "trimtab/v1/query.grpc.pb.h"

namespace trimtab::server {
namespace {

void LimitFileSize(pid_t pid, rlim_t bytes) {
  rlimit limit{};
  ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, nullptr, &limit), 0);
  limit.rlim_cur = bytes;
  ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, &limit, nullptr), 0);
}

v1::Step LargeStep(uint64_t sequence) {
  v1::Step step = LossStep(sequence, sequence, static_cast<float>(sequence));
  std::vector<float> values(64 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * sequence % 8191);
  *step.add_blocks() = Floats(kMaxLogit, {64, 64}, std::move(values));
  return step;
}

TEST(ServerDiskFullTest, StepsWaitUnacknowledgedUntilThereIsRoom) {
  TempDir folder;
  // Inherited by the server, which then gets an error from write() and not a signal.
  signal(SIGXFSZ, SIG_IGN);
  const std::string ready = folder.File("ready");
  ServerProcess server(
      TRIMTABD, {"--data-dir", folder.File("data"), "--listen", "127.0.0.1:0", "--http", "", "--ready-file", ready},
      folder.File("out"));
  ASSERT_TRUE(server.WaitReady(ready)) << server.output();
  TestCourier courier(server.grpc_address());
  courier.Send(HelloMessage(1, Info("run")));
  constexpr uint64_t kBefore = 20, kDuring = 200;
  for (uint64_t s = 1; s <= kBefore; ++s) courier.Send(StepsMessage(1, {LargeStep(s)}));
  ASSERT_TRUE(courier.WaitDurable(1, kBefore));

  LimitFileSize(server.pid(), 600 << 10);
  for (uint64_t s = kBefore + 1; s <= kBefore + kDuring; ++s) courier.Send(StepsMessage(1, {LargeStep(s)}));
  ASSERT_TRUE(Eventually([&] {
    return server.output().find("steps are not stored, will try again") != std::string::npos;
  })) << server.output();
  const uint64_t durable = courier.durable(1);
  EXPECT_LT(durable, kBefore + kDuring);
  // It still answers.
  const auto channel = grpc::CreateChannel(server.grpc_address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::ListRunsResponse runs;
  ASSERT_TRUE(v1::QueryService::NewStub(channel)->ListRuns(&context, {}, &runs).ok());
  EXPECT_LT(runs.runs(0).last_step(), kBefore + kDuring);

  LimitFileSize(server.pid(), RLIM_INFINITY);
  EXPECT_TRUE(courier.WaitDurable(1, kBefore + kDuring)) << server.output();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.output();
  auto store = Store::Open({.path = folder.File("data")});
  ASSERT_THAT(store, IsOk());
  EXPECT_EQ(*(*store)->CountRows("run", "max_attention_logit", 0, 0, 0), kBefore + kDuring);
}

}  // namespace
}  // namespace trimtab::server
