#include "server/cli/top_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_split.h"
#include "server/cli/run_view.h"

namespace trimtab::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

v1::RunState State(uint32_t layers) {
  v1::RunState state;
  state.mutable_summary()->set_run("run\x1b[31m");
  state.mutable_summary()->set_status("running");
  state.mutable_summary()->set_last_step(1234);
  state.mutable_summary()->set_layers(layers);
  v1::MetricDescriptor* const metric = state.add_metrics();
  metric->set_id(1);
  metric->set_name("max_attention_logit");
  metric->set_aggregation(v1::AGGREGATION_MAX);
  metric->add_axes(v1::AXIS_LAYER);
  metric->add_axes(v1::AXIS_HEAD);
  v1::Block* const block = state.add_latest();
  block->set_metric(1);
  block->add_shape(layers);
  block->add_shape(2);
  for (uint32_t i = 0; i < layers; ++i) {
    block->add_float32(i == 1 ? kNaN : static_cast<float>(10 * i));
    block->add_float32(static_cast<float>(10 * i + 7));
    state.add_modes(i == 2 ? v1::KERNEL_MODE_STABILIZED : v1::KERNEL_MODE_OBSERVE);
  }
  return state;
}

TEST(Sparkline, ShowsSpikesAndWhatIsNotFinite) {
  EXPECT_EQ(Sparkline({}, 10), "");
  EXPECT_EQ(Sparkline({1, 2, 3, 4}, 0), "");
  EXPECT_EQ(Sparkline({0, 1}, 10), "▁█");
  EXPECT_EQ(Sparkline({5, 5, 5}, 3), "▁▁▁");
  EXPECT_EQ(Sparkline({0, 0, 9, 0, 0, 0}, 2), "█▁");
  EXPECT_EQ(Sparkline({0, kNaN, 1}, 3), "▁!█");
}

TEST(LayerTable, NamesTheLargestHeadAndSkipsCellsWithoutSample) {
  const std::string table = LayerTable(State(3)).Render();
  const std::vector<std::string> lines = absl::StrSplit(table, '\n');
  EXPECT_THAT(lines[1], HasSubstr("observe"));
  EXPECT_THAT(lines[2], HasSubstr("17     1"));
  EXPECT_THAT(lines[3], HasSubstr("stabilized"));
}

TEST(TopFrame, FitsAnyTerminalAndHoldsNoEscapeSequence) {
  TopData data;
  data.state = State(96);
  data.losses = {3, 2, 1};
  data.events.resize(30);
  for (v1::Event& event : data.events) event.set_message("bad\x1b]0;x\x07");
  for (const size_t rows : {1U, 5U, 12U, 24U, 200U}) {
    for (const size_t columns : {1U, 10U, 40U, 120U}) {
      const std::string frame = TopFrame(data, {columns, rows}, 0);
      EXPECT_THAT(frame, Not(HasSubstr("\x1b")));
      const std::vector<std::string> lines = absl::StrSplit(frame, '\n');
      EXPECT_LE(lines.size() - 1, rows);
      for (const std::string& line : lines) EXPECT_LE(DisplayWidth(line), columns) << line;
    }
  }
}

TEST(TopFrame, SaysWhatIsHiddenAndWhatIsOld) {
  TopData data;
  data.state = State(96);
  data.problem = "no trimtabd answers";
  const std::string small = TopFrame(data, {100, 24}, 0);
  EXPECT_THAT(small, HasSubstr("more layers"));
  EXPECT_THAT(small, HasSubstr("! no trimtabd answers; what you see is old"));
  EXPECT_THAT(TopFrame(data, {100, 0}, 0), Not(HasSubstr("more layers")));
}

}  // namespace
}  // namespace trimtab::cli
