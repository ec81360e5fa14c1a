// The disk fills up or fails under a server: steps that cannot be stored are not acknowledged. With room again (a small
// tmpfs stands for the disk) the server stores and acknowledges them; after a failed write to the log (a limit on the
// size of files) it ends, and the next one goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
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

using testing::HasSubstr;

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

// A small disk of its own, seen by this process and its children only.
void MountSmallDisk(const std::string& path) {
  std::filesystem::create_directory(path);
  const std::string ids[] = {absl::StrCat("0 ", getuid(), " 1"), absl::StrCat("0 ", getgid(), " 1")};
  if (getuid() != 0) {  // a user may mount in a user namespace
    ASSERT_EQ(unshare(CLONE_NEWUSER), 0) << strerror(errno);
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << ids[0];
    std::ofstream("/proc/self/gid_map") << ids[1];
  }
  ASSERT_EQ(unshare(CLONE_NEWNS), 0) << strerror(errno);
  // In a chroot "/" is no mount (EINVAL): the disk is then seen outside as well, until its test ends.
  ASSERT_TRUE(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 || errno == EINVAL) << strerror(errno);
  ASSERT_EQ(mount("tmpfs", path.c_str(), "tmpfs", 0, "size=64m"), 0) << strerror(errno);
}

// Writes until the disk is full.
void Fill(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const std::string page(4096, 'x');
  while (file.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
  }
}

std::vector<std::string> Flags(const TempDir& folder, const std::string& data) {
  return {"--data-dir",     data, "--listen",     "127.0.0.1:0",       "--http", "",
          "--memtable-mib", "1",  "--ready-file", folder.File("ready")};
}

// 13 KB a step: far more than the log's preallocated room, which a full disk still takes.
constexpr uint64_t kBefore = 20, kDuring = 1000;

void SendSteps(TestCourier* courier, uint64_t first, uint64_t last) {
  for (uint64_t s = first; s <= last; ++s) courier->Send(StepsMessage(1, {LargeStep(s)}));
}

void ExpectStored(const std::string& data, uint64_t steps) {
  auto store = Store::Open({.path = data});
  ASSERT_THAT(store, IsOk());
  EXPECT_EQ(*(*store)->CountRows("run", "max_attention_logit", 0, 0, 0), steps);
}

TEST(ServerDiskFullTest, StepsWaitUnacknowledgedUntilThereIsRoom) {
  TempDir folder;
  ASSERT_NO_FATAL_FAILURE(MountSmallDisk(folder.File("disk")));
  const absl::Cleanup unmount = [&] { umount2(folder.File("disk").c_str(), MNT_DETACH); };
  const std::string data = folder.File("disk/data");
  ServerProcess server(TRIMTABD, Flags(folder, data), folder.File("out"));
  ASSERT_TRUE(server.WaitReady(folder.File("ready"))) << server.output();
  TestCourier courier(server.grpc_address());
  courier.Send(HelloMessage(1, Info("run")));
  SendSteps(&courier, 1, kBefore);
  ASSERT_TRUE(courier.WaitDurable(1, kBefore));

  Fill(folder.File("disk/filler"));
  SendSteps(&courier, kBefore + 1, kBefore + kDuring);
  // A write is answered with the error, or waits until the store has recovered: the cause is told either way.
  ASSERT_TRUE(Eventually([&] {
    return server.output().find("free space on the data folder's disk") != std::string::npos;
  })) << server.output();
  EXPECT_LT(courier.durable(1), kBefore + kDuring);
  // It still answers.
  const auto channel = grpc::CreateChannel(server.grpc_address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::ListRunsResponse runs;
  ASSERT_TRUE(v1::QueryService::NewStub(channel)->ListRuns(&context, {}, &runs).ok());
  EXPECT_LT(runs.runs(0).last_step(), kBefore + kDuring);

  std::filesystem::remove(folder.File("disk/filler"));
  EXPECT_TRUE(courier.WaitDurable(1, kBefore + kDuring)) << server.output();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.output();
  ExpectStored(data, kBefore + kDuring);
}

// A log whose write failed cannot be trusted before it was read again: the server ends, and the next one goes on.
TEST(ServerDiskFullTest, ABrokenLogEndsTheServerAndTheNextOneGoesOn) {
  TempDir folder;
  const std::string data = folder.File("data");
  // Inherited by the server, which then gets an error from write() and not a signal.
  signal(SIGXFSZ, SIG_IGN);
  uint64_t durable = 0;
  {
    ServerProcess server(TRIMTABD, Flags(folder, data), folder.File("out"));
    ASSERT_TRUE(server.WaitReady(folder.File("ready"))) << server.output();
    TestCourier courier(server.grpc_address());
    courier.Send(HelloMessage(1, Info("run")));
    SendSteps(&courier, 1, kBefore);
    ASSERT_TRUE(courier.WaitDurable(1, kBefore));
    LimitFileSize(server.pid(), 600 << 10);
    SendSteps(&courier, kBefore + 1, kBefore + kDuring);
    EXPECT_EQ(server.Wait(), 1) << server.output();
    EXPECT_THAT(server.output(), HasSubstr("trimtabd: the store is broken until it is opened again"));
    EXPECT_FALSE(courier.WaitRefusal().has_value() && courier.WaitEnd().ok()) << "the courier must keep the steps";
    durable = courier.durable(1);
    EXPECT_LT(durable, kBefore + kDuring);
  }
  ServerProcess server(TRIMTABD, Flags(folder, data), folder.File("out2"));
  ASSERT_TRUE(server.WaitReady(folder.File("ready"))) << server.output();
  TestCourier courier(server.grpc_address());
  courier.Send(HelloMessage(1, Info("run")));
  const auto welcome = courier.WaitWelcome(1);
  ASSERT_TRUE(welcome);
  EXPECT_GE(welcome->last_durable_sequence(), durable);
  SendSteps(&courier, welcome->last_durable_sequence() + 1, kBefore + kDuring);
  EXPECT_TRUE(courier.WaitDurable(1, kBefore + kDuring)) << server.output();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.output();
  ExpectStored(data, kBefore + kDuring);
}

}  // namespace
}  // namespace trimtab::server
