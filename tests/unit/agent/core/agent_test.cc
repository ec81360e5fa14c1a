// The C ABI with bad arguments, in forked children, without room, and switched off.
#include "trimtab/agent.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <vector>

#include "agent/core/ring_format.h"
#include "tests/unit/agent/core/ring_fixture.h"

namespace trimtab::agent {
namespace {

using testing::HasSubstr;

// Exit code of `body` in a forked child, or minus the signal that ended it.
int InChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class AgentTest : public RingTest {
 protected:
  ~AgentTest() override {
    unsetenv("TRIMTAB_DISABLE");
    unsetenv("TRIMTAB_RUN");
    unsetenv("TRIMTAB_RING_DIR");
  }

  // trimtab_open is refused with `status`, nothing is left behind, and the error names `cause`.
  void ExpectRefused(const trimtab_options& options, trimtab_status status, const std::string& cause) {
    trimtab_agent* agent = reinterpret_cast<trimtab_agent*>(1);
    EXPECT_EQ(trimtab_open(&options, &agent), status);
    EXPECT_EQ(agent, nullptr);
    EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr(cause));
    EXPECT_TRUE(std::filesystem::is_empty(dir_));
  }
};

TEST_F(AgentTest, OpenRefusesBadRunNames) {
  trimtab_options options = Options();
  const std::string longest(255, 'r');
  const std::string too_long(256, 'r');
  const std::string huge(10240, 'r');
  for (const auto& [run, cause] : std::vector<std::pair<std::string, std::string>>{{"", "empty"},
                                                                                   {"a\nb", "printable"},
                                                                                   {"\xFF\xFE", "printable"},
                                                                                   {"a\x1B[0m", "printable"},
                                                                                   {too_long, "255"},
                                                                                   {huge, "255"}}) {
    options.run = run.c_str();
    ExpectRefused(options, TRIMTAB_INVALID, cause);
  }
  options.run = nullptr;
  ExpectRefused(options, TRIMTAB_INVALID, "TRIMTAB_RUN");
  options.run = longest.c_str();
  Open(options);
  EXPECT_EQ(Reader()->identity().run, longest);
}

TEST_F(AgentTest, OpenRefusesBadNumbers) {
  trimtab_options options = Options();
  options.rank = 1;
  ExpectRefused(options, TRIMTAB_INVALID, "rank 1 is not below world_size 1");
  options = Options();
  options.world_size = 0;
  ExpectRefused(options, TRIMTAB_INVALID, "world_size is 0");
  options = Options();
  options.local_rank = 4;
  ExpectRefused(options, TRIMTAB_INVALID, "local_rank 4");
  options = Options();
  options.ring_bytes = kMinRingBytes - 1;
  ExpectRefused(options, TRIMTAB_INVALID, "ring_bytes");
  options.ring_bytes = kMaxRingBytes + 1;
  ExpectRefused(options, TRIMTAB_INVALID, "ring_bytes");
  options = Options();
  options.struct_size = 8;
  ExpectRefused(options, TRIMTAB_INVALID, "struct_size");
  options = Options();
  options.info_json = "[]";
  ExpectRefused(options, TRIMTAB_INVALID, "JSON object");
  EXPECT_EQ(trimtab_open(nullptr, &agent_), TRIMTAB_INVALID);
  EXPECT_EQ(trimtab_open(&options, nullptr), TRIMTAB_INVALID);
}

TEST_F(AgentTest, OpenTakesRunAndFolderFromTheEnvironment) {
  setenv("TRIMTAB_RUN", "from-environment", 1);
  setenv("TRIMTAB_RING_DIR", dir_.c_str(), 1);
  trimtab_options options = Options();
  options.run = nullptr;
  options.ring_dir = nullptr;
  Open(options);
  EXPECT_EQ(Reader()->identity().run, "from-environment");
  EXPECT_THAT(path_, testing::StartsWith(dir_));
}

TEST_F(AgentTest, RingFolderIsMadePrivateAndMustBePrivate) {
  trimtab_options options = Options();
  const std::string made = dir_ + "/made";
  options.ring_dir = made.c_str();
  Open(options);
  Close();
  struct stat info;
  ASSERT_EQ(stat(made.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);

  ASSERT_EQ(chmod(made.c_str(), 0750), 0);
  EXPECT_EQ(trimtab_open(&options, &agent_), TRIMTAB_IO);
  EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr("chmod 700"));

  ASSERT_EQ(chmod(made.c_str(), 0700), 0);
  const std::string link = dir_ + "/link";
  ASSERT_EQ(symlink(made.c_str(), link.c_str()), 0);
  options.ring_dir = link.c_str();
  EXPECT_EQ(trimtab_open(&options, &agent_), TRIMTAB_IO) << "a link may lead anywhere";

  const std::string file = dir_ + "/file";
  close(open(file.c_str(), O_CREAT | O_WRONLY, 0600));
  options.ring_dir = file.c_str();
  EXPECT_EQ(trimtab_open(&options, &agent_), TRIMTAB_IO);

  const std::string deep(kPageBytes, 'd');
  options.ring_dir = deep.c_str();
  EXPECT_EQ(trimtab_open(&options, &agent_), TRIMTAB_IO);
  EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr("too long"));

  if (geteuid() == 0) {
    ASSERT_EQ(chown(made.c_str(), 65534, 65534), 0);
    options.ring_dir = made.c_str();
    EXPECT_EQ(trimtab_open(&options, &agent_), TRIMTAB_IO);
    EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr("belongs to user 65534"));
  }
}

TEST_F(AgentTest, DisabledIsANoOpEverywhere) {
  setenv("TRIMTAB_DISABLE", "1", 1);
  ExpectRefused(Options(), TRIMTAB_DISABLED, "TRIMTAB_DISABLE");
  const float loss = 1.0f;
  uint8_t mode = TRIMTAB_MODE_OBSERVE;
  trimtab_command command;
  EXPECT_EQ(trimtab_step_begin(nullptr, 1, 1), TRIMTAB_DISABLED);
  EXPECT_EQ(trimtab_step_put_f32(nullptr, 1, &loss, 0, 0), TRIMTAB_DISABLED);
  EXPECT_EQ(trimtab_step_commit(nullptr), TRIMTAB_DISABLED);
  EXPECT_EQ(trimtab_set_info(nullptr, "{}", 2), TRIMTAB_DISABLED);
  EXPECT_EQ(trimtab_ack(nullptr, 1, TRIMTAB_ACK_PREPARED, 1, ""), TRIMTAB_DISABLED);
  EXPECT_EQ(trimtab_poll_command(nullptr, &command), 0);
  EXPECT_EQ(trimtab_latch_step(nullptr, 1, &mode, 1), 0);
  EXPECT_EQ(trimtab_dropped_steps(nullptr), 0u);
  EXPECT_STREQ(trimtab_ring_path(nullptr), "");
  trimtab_close(nullptr);
  setenv("TRIMTAB_DISABLE", "0", 1);
  Open(Options());
  EXPECT_EQ(trimtab_step_begin(nullptr, 1, 1), TRIMTAB_INVALID);
}

TEST_F(AgentTest, PutRefusesWhatTheSchemaDoesNotSay) {
  Open(Options());
  const std::vector<float> floats(2048, 0.0f);
  const std::vector<uint64_t> counts(2048, 0);
  const uint32_t loss = trimtab_metric_id("loss");
  const uint32_t logit = trimtab_metric_id("max_attention_logit");
  const uint32_t rms = trimtab_metric_id("activation_rms");
  const uint32_t mode = trimtab_metric_id("attention_mode");
  EXPECT_EQ(trimtab_step_put_f32(agent_, loss, floats.data(), 0, 0), TRIMTAB_INVALID);
  EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr("trimtab_step_begin"));
  EXPECT_EQ(trimtab_step_commit(agent_), TRIMTAB_INVALID);
  EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr("trimtab_step_begin"));

  ASSERT_EQ(trimtab_step_begin(agent_, 1, 0), TRIMTAB_OK);
  const auto refused = [&](uint32_t metric, uint32_t dim0, uint32_t dim1, const std::string& cause) {
    EXPECT_EQ(trimtab_step_put_f32(agent_, metric, floats.data(), dim0, dim1), TRIMTAB_INVALID) << cause;
    EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr(cause));
  };
  refused(0, 0, 0, "id 0");
  refused(9, 0, 0, "id 9");
  refused(UINT32_MAX, 0, 0, "id 4294967295");
  refused(mode, 4, 0, "trimtab_step_put_u64");
  refused(loss, 1, 0, "scalar");
  refused(loss, 0, 1, "scalar");
  refused(rms, 0, 0, "1 to 1024");
  refused(rms, TRIMTAB_MAX_LAYERS + 1, 0, "1 to 1024");
  refused(rms, 2, 2, "no head axis");
  refused(logit, 2, 0, "heads");
  refused(logit, 0, 2, "layers");
  refused(logit, 1, kMaxHeads + 1, "heads");
  refused(logit, UINT32_MAX, UINT32_MAX, "must be 1 to");
  EXPECT_EQ(trimtab_step_put_f32(agent_, loss, nullptr, 0, 0), TRIMTAB_INVALID);
  EXPECT_EQ(trimtab_step_put_u64(agent_, loss, counts.data(), 0, 0), TRIMTAB_INVALID);
  EXPECT_EQ(trimtab_step_put_f32(agent_, rms, floats.data(), TRIMTAB_MAX_LAYERS, 0), TRIMTAB_OK);
  EXPECT_EQ(trimtab_step_put_f32(agent_, logit, floats.data(), 1, kMaxHeads), TRIMTAB_OK);
  refused(rms, 1, 0, "already");
  ASSERT_EQ(trimtab_step_commit(agent_), TRIMTAB_OK);

  RingStep step;
  ASSERT_EQ(Reader()->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.blocks.size(), 2u) << "a refused put left something";
}

TEST_F(AgentTest, InfoAndAckRefuseBadText) {
  Open(Options());
  const std::string over = "{" + std::string(kMaxInfoBytes - 1, ' ') + "}";
  EXPECT_EQ(trimtab_set_info(agent_, over.data(), over.size()), TRIMTAB_INVALID);
  EXPECT_THAT(std::string(trimtab_last_error()), HasSubstr("262144"));
  for (const std::string bad : {"", "{", "null", "{\"a\":\"\xFF\"}"}) {
    EXPECT_EQ(trimtab_set_info(agent_, bad.data(), bad.size()), TRIMTAB_INVALID) << bad;
  }
  EXPECT_EQ(trimtab_set_info(agent_, "{\0}", 3), TRIMTAB_INVALID);
  EXPECT_EQ(trimtab_set_info(agent_, nullptr, 0), TRIMTAB_INVALID);
  std::string json;
  EXPECT_FALSE(Reader()->ReadInfo(&json));
  EXPECT_EQ(trimtab_ack(agent_, 1, static_cast<trimtab_ack_state>(0), 1, ""), TRIMTAB_INVALID);
  EXPECT_EQ(trimtab_ack(agent_, 1, static_cast<trimtab_ack_state>(6), 1, ""), TRIMTAB_INVALID);
  EXPECT_EQ(trimtab_ack(agent_, 1, TRIMTAB_ACK_REFUSED, 1, "\xC3"), TRIMTAB_INVALID);
  EXPECT_TRUE(Reader()->ReadAcks(0).empty());
}

TEST_F(AgentTest, ForkedChildDoesNotReportAndDoesNotClose) {
  Open(Options());
  ASSERT_EQ(CommitStep(1), TRIMTAB_OK);
  const int child = InChild([&] {
    const float loss = 1.0f;
    uint8_t mode = TRIMTAB_MODE_OBSERVE;
    trimtab_command command;
    const bool refused = trimtab_step_begin(agent_, 2, 0) == TRIMTAB_FORKED &&
                         trimtab_step_put_f32(agent_, 1, &loss, 0, 0) == TRIMTAB_FORKED &&
                         trimtab_step_commit(agent_) == TRIMTAB_FORKED &&
                         trimtab_set_info(agent_, "{}", 2) == TRIMTAB_FORKED &&
                         trimtab_ack(agent_, 1, TRIMTAB_ACK_PREPARED, 1, "") == TRIMTAB_FORKED &&
                         trimtab_poll_command(agent_, &command) == 0 && trimtab_latch_step(agent_, 1, &mode, 1) == 0;
    trimtab_close(agent_);
    return refused ? 0 : 1;
  });
  EXPECT_EQ(child, 0);
  const auto reader = Reader();
  EXPECT_FALSE(reader->closed());
  EXPECT_TRUE(reader->writer_alive());
  ASSERT_EQ(CommitStep(2), TRIMTAB_OK);
  RingStep step;
  for (uint64_t i = 1; i <= 2; ++i) {
    ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
    EXPECT_EQ(step.step, i);
  }
  EXPECT_TRUE(reader->ReadAcks(0).empty());
}

TEST_F(AgentTest, ForkedChildCanOpenAnAgentOfItsOwn) {
  Open(Options());
  EXPECT_EQ(InChild([&] {
              agent_ = nullptr;
              trimtab_options options = Options();
              options.run = "child";
              if (trimtab_open(&options, &agent_) != TRIMTAB_OK || CommitStep(7) != TRIMTAB_OK) return 1;
              trimtab_close(agent_);
              return 0;
            }),
            0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 2);
}

TEST_F(AgentTest, OverTheFileSizeLimitIsAnErrorAndNotASignal) {
  EXPECT_EQ(InChild([&] {
              const rlimit limit = {1024 * 1024, 1024 * 1024};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
              const trimtab_options options = Options();
              const trimtab_status status = trimtab_open(&options, &agent_);
              return status == TRIMTAB_IO && strstr(trimtab_last_error(), "ulimit -f") != nullptr ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

// On a tmpfs of 4 MiB, which takes the right to mount: as root or through a user namespace. Where neither is allowed
// the file size limit above is the test of a ring without room, and this one shows that mounting is what is missing.
TEST_F(AgentTest, FullDiskIsAnErrorAtOpenAndNotASignalLater) {
  constexpr int kNoMount = 77;
  const int result = InChild([&] {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNoMount;
    mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=4m,mode=0700") != 0) return kNoMount;
    trimtab_options options = Options();
    if (trimtab_open(&options, &agent_) != TRIMTAB_IO) return 1;
    if (strstr(trimtab_last_error(), "No space left") == nullptr) return 2;
    if (!std::filesystem::is_empty(dir_)) return 3;
    options.ring_bytes = 3 * 1024 * 1024;
    if (trimtab_open(&options, &agent_) != TRIMTAB_OK) return 4;
    // Fill what is left: every page of the ring must be there already.
    const int fd = open((dir_ + "/filler").c_str(), O_CREAT | O_WRONLY, 0600);
    const std::vector<char> block(64 * 1024, 'x');
    while (write(fd, block.data(), block.size()) > 0) {
    }
    close(fd);
    for (uint64_t i = 0; i < 10000; ++i) {
      if (CommitStep(i, 8, 16) != TRIMTAB_OK) return 5;
    }
    return 0;
  });
  if (result == kNoMount) {
    EXPECT_NE(mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=4m"), 0) << "mounting works here, but not in a namespace";
    return;
  }
  EXPECT_EQ(result, 0);
}

TEST_F(AgentTest, VersionAndPathAreThere) {
  EXPECT_STREQ(trimtab_version(), TRIMTAB_PROJECT_VERSION);
  Open(Options());
  EXPECT_TRUE(std::filesystem::is_regular_file(trimtab_ring_path(agent_)));
}

}  // namespace
}  // namespace trimtab::agent
