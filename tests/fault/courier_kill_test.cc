// kill -9 of courier and trainers at random moments, with the real executable: nothing that the ring or the spool held
// is lost, and everything arrives once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/agent/courier/courier_fixture.h"

namespace trimtab::courier {
namespace {

class Process {
 public:
  // `out`: a descriptor that becomes the child's stdout; -1: leave it.
  explicit Process(std::vector<std::string> args, int out = -1) {
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (out >= 0) posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0) << argv[0];
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ > 0) Kill(SIGKILL);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int Kill(int signal) {
    kill(pid_, signal);
    return Wait();
  }
  // Exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
};

class CourierKillTest : public CourierFixture {
 protected:
  std::unique_ptr<Process> StartCourier(const std::vector<std::string>& more = {"--exit-when-idle"}) {
    std::vector<std::string> args = {TRIMTAB_COURIER, "--server",    "127.0.0.1:" + std::to_string(port_),
                                     "--ring-dir",    rings_.path(), "--spool-dir",
                                     spool_dir(),     "--poll-ms",   "5",
                                     "--log-level",   "warn"};
    args.insert(args.end(), more.begin(), more.end());
    return std::make_unique<Process>(args);
  }
  void Sleep(uint64_t most_ms) { std::this_thread::sleep_for(std::chrono::milliseconds(random_() % most_ms)); }
  std::mt19937 random_{7};
};

TEST_F(CourierKillTest, CourierKilledWhileDelivering) {
  TestTrainer trainer(rings_.path(), 1, 16 << 20);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> written{0};
  std::thread training([&] {
    while (!stop) {
      trainer.Step(written + 1);
      ++written;
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  std::unique_ptr<Process> courier = StartCourier();
  for (int round = 0; round < 25; ++round) {
    server_->behaviour().ack_delay_ms = round % 2 == 0 ? 2 : 0;
    Sleep(400);
    if (round % 5 == 4) {
      StopServer();
      Sleep(1500);
    }
    EXPECT_EQ(courier->Kill(SIGKILL), -SIGKILL);
    Sleep(50);
    if (server_ == nullptr) StartServer();
    courier = StartCourier();
  }
  stop = true;
  training.join();
  trainer.Close();
  EXPECT_EQ(courier->Wait(), kExitOk);
  ExpectAll(1, written);
  EXPECT_TRUE(FilesBelow(spool_dir(), "").empty());
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty());
}

TEST_F(CourierKillTest, CourierKilledWhileSpoolingWhatTheRingOverwrites) {
  StopServer();
  TestTrainer trainer(rings_.path(), 1, 64 << 10);
  std::unique_ptr<Process> courier = StartCourier();
  std::atomic<bool> stop{false};
  std::thread killing([&] {
    for (int round = 0; round < 20 && !stop; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1200 + random_() % 400));
      courier->Kill(SIGKILL);
      courier = StartCourier();
    }
  });
  uint64_t step = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(25);
  while (std::chrono::steady_clock::now() < end) {
    // At most 260 of the 340 steps that the ring holds are not in the spool.
    ASSERT_NO_FATAL_FAILURE(WriteSpooled(&trainer, step + 1, step + 40, 40, 220));
    step += 40;
  }
  stop = true;
  killing.join();
  EXPECT_GT(step, 2000u) << "several times what the ring holds";
  StartServer();
  ASSERT_TRUE(WaitSteps(1, step));
  trainer.Close();
  EXPECT_EQ(courier->Wait(), kExitOk);
  ExpectAll(1, step);
  EXPECT_TRUE(FilesBelow(spool_dir(), "").empty());
}

TEST_F(CourierKillTest, KilledTrainersLastStepsArrive) {
  std::unique_ptr<Process> courier = StartCourier({});
  for (uint32_t rank = 0; rank < 20; ++rank) {
    std::array<int, 2> pipe_ends;
    ASSERT_EQ(pipe2(pipe_ends.data(), O_CLOEXEC), 0);
    uint64_t committed = 0;
    {
      Process trainer({COURIER_TEST_TRAINER, rings_.path(), std::to_string(rank % 16), "1000000", "200", "report"},
                      pipe_ends[1]);
      close(pipe_ends[1]);
      Sleep(150);
      EXPECT_EQ(trainer.Kill(SIGKILL), -SIGKILL);
    }
    uint64_t number = 0;
    while (read(pipe_ends[0], &number, sizeof(number)) == sizeof(number)) committed = number;
    close(pipe_ends[0]);
    ASSERT_TRUE(WaitUntil([&] { return FilesBelow(rings_.path(), ".ring").empty(); }));
    if (committed == 0) continue;  // killed before its first step
    std::lock_guard<std::mutex> lock(store_.mutex);
    const ServerStore::Rank* last = nullptr;
    for (const auto& [key, life] : store_.ranks) {
      if (std::get<1>(key) == rank % 16 && (last == nullptr || life.order > last->order)) last = &life;
    }
    ASSERT_NE(last, nullptr);
    EXPECT_GE(last->steps.size(), committed) << "what was committed arrived";
    EXPECT_EQ(last->steps.rbegin()->first, last->steps.size()) << "without holes";
    EXPECT_EQ(last->repeated_steps, 0u);
    ASSERT_TRUE(last->goodbye.has_value());
    EXPECT_FALSE(last->goodbye->clean());
    ExpectContent(*last);
  }
  EXPECT_EQ(courier->Kill(SIGTERM), kExitOk);
}

TEST_F(CourierKillTest, AWaitingCourierTakesOverFromAKilledOne) {
  TestTrainer trainer(rings_.path(), 1);
  std::unique_ptr<Process> first = StartCourier();
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(1, 1));
  EXPECT_EQ(StartCourier()->Wait(), kExitOk) << "without --wait-lock it leaves at once";
  std::unique_ptr<Process> second = StartCourier({"--exit-when-idle", "--wait-lock"});
  Sleep(300);
  first->Kill(SIGKILL);
  trainer.Step(2);
  ASSERT_TRUE(WaitSteps(1, 2));
  trainer.Close();
  EXPECT_EQ(second->Wait(), kExitOk);
  ExpectAll(1, 2);
}

TEST_F(CourierKillTest, TerminatedWithoutAServerItSpoolsAndEnds) {
  StopServer();
  TestTrainer trainer(rings_.path(), 1);
  std::unique_ptr<Process> courier = StartCourier({});
  for (uint64_t step = 1; step <= 100; ++step) trainer.Step(step);
  ASSERT_TRUE(WaitUntil([&] { return NewestSpooled() == 100; }));
  for (uint64_t step = 101; step <= 110; ++step) trainer.Step(step);
  EXPECT_EQ(courier->Kill(SIGTERM), kExitOk);
  StartServer();
  courier = StartCourier();
  ASSERT_TRUE(WaitSteps(1, 110));
  trainer.Close();
  EXPECT_EQ(courier->Wait(), kExitOk);
  ExpectAll(1, 110);
}

TEST_F(CourierKillTest, WrongFlagsEndWithTwo) {
  EXPECT_EQ(Process({TRIMTAB_COURIER, "--server", "nowhere"}).Wait(), kExitUsage);
  EXPECT_EQ(StartCourier({"--log-file", "/proc/no/log"})->Wait(), kExitUsage);
}

}  // namespace
}  // namespace trimtab::courier
