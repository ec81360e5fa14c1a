// A trainer that writes a ring through the public C ABI, with steps whose content tells their number.
#ifndef TRIMTAB_TESTS_UNIT_AGENT_COURIER_TEST_TRAINER_H_
#define TRIMTAB_TESTS_UNIT_AGENT_COURIER_TEST_TRAINER_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "trimtab/agent.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::courier {

// A folder of its own, removed with everything in it.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "courier-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Files below `folder`, also in folders below it, whose name ends with `suffix`.
inline std::vector<std::string> FilesBelow(const std::string& folder, const std::string& suffix) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (auto it = std::filesystem::recursive_directory_iterator(folder, ignored);
       it != std::filesystem::recursive_directory_iterator(); it.increment(ignored)) {
    const std::string path = it->path().string();
    if (it->is_regular_file(ignored) && path.size() >= suffix.size() &&
        path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0) {
      found.push_back(path);
    }
  }
  return found;
}

// While it lives, no file of this process can grow beyond `bytes`: writes fail as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

class TestTrainer {
 public:
  TestTrainer(const std::string& ring_dir, uint32_t rank, uint64_t ring_bytes = 1 << 20, const char* info = nullptr) {
    trimtab_options options = {};
    options.struct_size = sizeof(options);
    options.ring_dir = ring_dir.c_str();
    options.run = "run \"one\"";
    options.rank = rank;
    options.world_size = 4096;
    options.local_rank = rank;
    options.ring_bytes = ring_bytes;
    options.act = 1;
    options.info_json = info;
    EXPECT_EQ(trimtab_open(&options, &agent_), TRIMTAB_OK) << trimtab_last_error();
  }
  ~TestTrainer() { Close(); }
  void Close() {
    if (agent_ != nullptr) trimtab_close(agent_);
    agent_ = nullptr;
  }
  trimtab_agent* agent() { return agent_; }

  // Step number `step`: loss = step / 2, and a [layers, heads] tensor filled with the number.
  void Step(uint64_t step, uint32_t layers = 4, uint32_t heads = 4) {
    const float loss = static_cast<float>(step) / 2;
    const std::vector<float> logits(size_t{layers} * heads, static_cast<float>(step));
    EXPECT_EQ(trimtab_step_begin(agent_, step, static_cast<int64_t>(step) * 1000), TRIMTAB_OK);
    EXPECT_EQ(trimtab_step_put_f32(agent_, trimtab_metric_id("loss"), &loss, 0, 0), TRIMTAB_OK);
    EXPECT_EQ(trimtab_step_put_f32(agent_, trimtab_metric_id("max_attention_logit"), logits.data(), layers, heads),
              TRIMTAB_OK);
    EXPECT_EQ(trimtab_step_commit(agent_), TRIMTAB_OK) << trimtab_last_error();
  }

 private:
  trimtab_agent* agent_ = nullptr;
};

// A stored step is what Step wrote.
inline void ExpectStep(const v1::Step& step, uint32_t layers = 4, uint32_t heads = 4) {
  ASSERT_EQ(step.blocks_size(), 2);
  EXPECT_EQ(step.time_unix_nanos(), static_cast<int64_t>(step.step()) * 1000);
  ASSERT_EQ(step.blocks(0).float32_size(), 1);
  EXPECT_EQ(step.blocks(0).float32(0), static_cast<float>(step.step()) / 2);
  ASSERT_EQ(step.blocks(1).float32_size(), static_cast<int>(layers * heads));
  ASSERT_EQ(step.blocks(1).shape_size(), 2);
  EXPECT_EQ(step.blocks(1).shape(0), layers);
  EXPECT_EQ(step.blocks(1).float32(0), static_cast<float>(step.step()));
  EXPECT_EQ(step.blocks(1).float32(static_cast<int>(layers * heads) - 1), static_cast<float>(step.step()));
}

}  // namespace trimtab::courier
#endif  // TRIMTAB_TESTS_UNIT_AGENT_COURIER_TEST_TRAINER_H_
