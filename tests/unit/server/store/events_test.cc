#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "server/store/store.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Event MakeEvent(const std::string& run, const std::string& message) {
  v1::Event event;
  event.set_run(run);
  event.set_kind("alert");
  event.set_message(message);
  return event;
}

class EventsTest : public testing::Test, public EventListener {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen() {
    store_.reset();
    auto opened = Store::Open({.path = folder_.path()});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
  }
  std::vector<uint64_t> Ids(const std::string& run, uint64_t after, uint64_t max, bool newest) {
    const auto events = store_->ReadEvents(run, after, max, newest);
    EXPECT_THAT(events, IsOk());
    std::vector<uint64_t> ids;
    for (const v1::Event& event : *events) ids.push_back(event.id());
    return ids;
  }
  void OnEvent(const v1::Event& event) override { heard_.push_back(event.id()); }

  TempDir folder_;
  std::unique_ptr<Store> store_;
  std::vector<uint64_t> heard_;
};

TEST_F(EventsTest, IdsRiseByOneOverReopening) {
  store_->AddEventListener(this);
  EXPECT_EQ(*store_->Append(MakeEvent("a", "1")), 1);
  EXPECT_EQ(*store_->Append(MakeEvent("b", "2")), 2);
  EXPECT_THAT(heard_, ElementsAre(1, 2));
  Reopen();
  EXPECT_EQ(*store_->Append(MakeEvent("", "3")), 3);
  const auto events = store_->ReadEvents("", 0, 10, false);
  ASSERT_THAT(events, IsOk());
  ASSERT_EQ(events->size(), 3);
  EXPECT_EQ((*events)[0].message(), "1");
  EXPECT_GT((*events)[0].time_unix_nanos(), 0) << "the store sets an unset time";
  EXPECT_EQ(store_->statistics().events, 3);
}

TEST_F(EventsTest, RangesOfOneRunAndOfAll) {
  for (int i = 1; i <= 10; ++i) ASSERT_THAT(store_->Append(MakeEvent(i % 2 ? "odd" : "even", "")), IsOk());
  EXPECT_THAT(Ids("", 0, 3, false), ElementsAre(1, 2, 3));
  EXPECT_THAT(Ids("", 0, 3, true), ElementsAre(8, 9, 10));
  EXPECT_THAT(Ids("", 8, 100, false), ElementsAre(9, 10));
  EXPECT_THAT(Ids("", 8, 100, true), ElementsAre(9, 10));
  EXPECT_THAT(Ids("odd", 0, 100, false), ElementsAre(1, 3, 5, 7, 9));
  EXPECT_THAT(Ids("odd", 5, 100, false), ElementsAre(7, 9));
  EXPECT_THAT(Ids("even", 0, 2, true), ElementsAre(8, 10));
  EXPECT_THAT(Ids("neither", 0, 100, false), IsEmpty());
  EXPECT_THAT(Ids("", 10, 100, false), IsEmpty());
  EXPECT_THAT(Ids("", UINT64_MAX, 100, false), IsEmpty());
}

TEST_F(EventsTest, ConcurrentAppendsLoseNothing) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) ASSERT_THAT(store_->Append(MakeEvent("run", "")), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto ids = Ids("run", 0, 1000, false);
  EXPECT_EQ(ids.size(), 100);
  EXPECT_EQ(ids.back(), 100);
}

TEST_F(EventsTest, AnEventHasABound) {
  EXPECT_THAT(store_->Append(MakeEvent("run", std::string(2 << 20, 'x'))),
              StatusIs(absl::StatusCode::kInvalidArgument, _));
  EXPECT_EQ(*store_->Append(MakeEvent("run", "")), 1) << "a refused event takes no id";
}

}  // namespace
}  // namespace trimtab::server
