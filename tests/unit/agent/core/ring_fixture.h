// A ring directory of its own per test, an agent in it and a reader on it.
#ifndef TRIMTAB_TESTS_UNIT_AGENT_CORE_RING_FIXTURE_H_
#define TRIMTAB_TESTS_UNIT_AGENT_CORE_RING_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/ring_reader.h"
#include "trimtab/agent.h"

namespace trimtab::agent {

class RingTest : public testing::Test {
 protected:
  RingTest() {
    std::string name = (std::filesystem::temp_directory_path() / "trimtab-ring-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~RingTest() override {
    trimtab_close(agent_);
    std::filesystem::remove_all(dir_);
  }

  trimtab_options Options() const {
    trimtab_options options = {};
    options.struct_size = sizeof(options);
    options.ring_dir = dir_.c_str();
    options.run = "test-run";
    options.world_size = 1;
    return options;
  }

  // Opens agent_ with `options`; a test that closes it itself calls Close.
  void Open(const trimtab_options& options) {
    ASSERT_EQ(trimtab_open(&options, &agent_), TRIMTAB_OK) << trimtab_last_error();
    path_ = trimtab_ring_path(agent_);
  }
  void Close() {
    trimtab_close(agent_);
    agent_ = nullptr;
  }

  std::unique_ptr<RingReader> Reader() const {
    RingError error = RingError::kOk;
    std::string message;
    std::unique_ptr<RingReader> reader = RingReader::Open(path_, &error, &message);
    EXPECT_NE(reader, nullptr) << message;
    return reader;
  }

  // Commits one step of a loss and `extra` layer × head blocks that hold the step's number.
  trimtab_status CommitStep(uint64_t step, uint32_t layers = 2, uint32_t heads = 4) {
    const float loss = 1.0f / static_cast<float>(step + 1);
    const std::vector<float> logits(static_cast<size_t>(layers) * heads, static_cast<float>(step));
    EXPECT_EQ(trimtab_step_begin(agent_, step, static_cast<int64_t>(step) * 1000), TRIMTAB_OK);
    trimtab_step_put_f32(agent_, trimtab_metric_id("loss"), &loss, 0, 0);
    trimtab_step_put_f32(agent_, trimtab_metric_id("max_attention_logit"), logits.data(), layers, heads);
    return trimtab_step_commit(agent_);
  }

  std::string dir_;
  std::string path_;
  trimtab_agent* agent_ = nullptr;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_TESTS_UNIT_AGENT_CORE_RING_FIXTURE_H_
