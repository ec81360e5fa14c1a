#include "agent/core/process_id.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace trimtab::agent {
namespace {

TEST(ProcessIdTest, OwnProcessIsAliveAndKeepsItsStart) {
  ProcessStat first, second;
  ASSERT_TRUE(ReadProcessStat(static_cast<uint32_t>(getpid()), &first));
  ASSERT_TRUE(ReadProcessStat(static_cast<uint32_t>(getpid()), &second));
  EXPECT_GT(first.start_ticks, 0u);
  EXPECT_EQ(first.start_ticks, second.start_ticks);
  EXPECT_GE(first.threads, 1u);
  EXPECT_TRUE(IsProcessAlive(static_cast<uint32_t>(getpid()), first.start_ticks));
  EXPECT_FALSE(IsProcessAlive(static_cast<uint32_t>(getpid()), first.start_ticks + 1)) << "a reused pid";
}

TEST(ProcessIdTest, NameWithBracketsAndSpacesIsReadPast) {
  char before[16];
  prctl(PR_GET_NAME, before);
  prctl(PR_SET_NAME, "a) R (b ) 7");
  ProcessStat stat;
  EXPECT_TRUE(ReadProcessStat(static_cast<uint32_t>(getpid()), &stat));
  prctl(PR_SET_NAME, before);
  ProcessStat plain;
  ASSERT_TRUE(ReadProcessStat(static_cast<uint32_t>(getpid()), &plain));
  EXPECT_EQ(stat.start_ticks, plain.start_ticks);
}

TEST(ProcessIdTest, ZombieAndNobodyAreDead) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  ProcessStat stat;
  ASSERT_TRUE(ReadProcessStat(static_cast<uint32_t>(pid), &stat));
  EXPECT_EQ(stat.state, 'Z');
  EXPECT_FALSE(IsProcessAlive(static_cast<uint32_t>(pid), stat.start_ticks));
  waitpid(pid, nullptr, 0);
  EXPECT_FALSE(ReadProcessStat(static_cast<uint32_t>(pid), &stat));
  EXPECT_FALSE(IsProcessAlive(0, 0));
}

}  // namespace
}  // namespace trimtab::agent
