#include "agent/torch/coverage.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trimtab::agent {
namespace {

TEST(CoverageTest, CountsByOpAndReason) {
  Coverage coverage;
  coverage.PassBy("a", "dropout");
  coverage.PassBy("a", "dropout", 2);
  coverage.PassBy("b", "dropout");
  const Json json = coverage.ToJson();
  ASSERT_EQ(json.Find("passed_by")->items().size(), 2U);
  EXPECT_EQ(json.Find("passed_by")->items()[0].Find("calls")->AsInteger(), 3);
  EXPECT_EQ(coverage.calls_passed, 4U);
}

TEST(CoverageTest, ReasonsBeyondTheBoundFoldTogetherAndLoseNoCall) {
  Coverage coverage;
  std::vector<std::string> reasons;
  for (size_t i = 0; i < Coverage::kMaxReasons + 10; ++i) reasons.push_back("r" + std::to_string(i));
  for (const std::string& reason : reasons) coverage.PassBy("a", reason.c_str());
  const Json json = coverage.ToJson();
  EXPECT_EQ(json.Find("passed_by")->items().size(), Coverage::kMaxReasons);
  int64_t calls = 0;
  for (const Json& row : json.Find("passed_by")->items()) calls += row.Find("calls")->AsInteger();
  EXPECT_EQ(calls, static_cast<int64_t>(reasons.size()));
}

TEST(CoverageTest, NotesAndErrorsAreBoundedAndTheRestCounted) {
  Coverage coverage;
  for (size_t i = 0; i < Coverage::kMaxNotes + 3; ++i) coverage.Note(std::to_string(i));
  for (size_t i = 0; i < Coverage::kMaxErrors + 4; ++i) coverage.Error(std::to_string(i));
  coverage.Note("0");
  const Json json = coverage.ToJson();
  EXPECT_EQ(json.Find("notes")->items().size(), Coverage::kMaxNotes + 1);
  EXPECT_EQ(json.Find("notes")->items().back().AsString(), "7 more notes or errors were left out");
  EXPECT_EQ(json.Find("errors")->items().size(), Coverage::kMaxErrors);
}

TEST(CoverageTest, AReplacedNoteKeepsItsPlace) {
  Coverage coverage;
  coverage.ReplaceNote("sampling: ", "a");
  coverage.Note("x");
  const uint64_t version = coverage.version();
  coverage.ReplaceNote("sampling: ", "b");
  EXPECT_GT(coverage.version(), version);
  EXPECT_EQ(coverage.ToJson().Find("notes")->Dump(), R"(["sampling: b","x"])");
}

}  // namespace
}  // namespace trimtab::agent
