#include "server/ingest/write_queue.h"

#include <gtest/gtest.h>

#include "server/ingest/channel_table.h"
#include "server/ingest/session.h"

namespace trimtab::server {
namespace {

WriteItem Item(size_t bytes) {
  WriteItem item;
  item.bytes = bytes;
  return item;
}

TEST(WriteQueueTest, FullCountsWhatIsHeldUntilItIsReleased) {
  WriteQueue queue(100);
  queue.Push(Item(99));
  EXPECT_FALSE(queue.full());
  queue.Push(Item(1));
  EXPECT_TRUE(queue.full());
  std::vector<WriteItem> items;
  ASSERT_TRUE(queue.Pop(1000, absl::ZeroDuration(), &items));
  EXPECT_EQ(items.size(), 2);
  EXPECT_TRUE(queue.full()) << "being written still counts";
  queue.Release(items);
  EXPECT_FALSE(queue.full());
  EXPECT_EQ(queue.bytes(), 0);
}

TEST(WriteQueueTest, PopTakesAtLeastOneAndAtMostTheLimit) {
  WriteQueue queue(1000);
  for (const size_t bytes : {50, 30, 30}) queue.Push(Item(bytes));
  std::vector<WriteItem> items;
  ASSERT_TRUE(queue.Pop(10, absl::ZeroDuration(), &items));
  EXPECT_EQ(items.size(), 1) << "one larger than the limit still goes";
  ASSERT_TRUE(queue.Pop(60, absl::ZeroDuration(), &items));
  EXPECT_EQ(items.size(), 2);
  EXPECT_EQ(queue.messages(), 0);
}

TEST(WriteQueueTest, ClosingLetsTheRestOut) {
  WriteQueue queue(1000);
  queue.Push(Item(1));
  queue.Close();
  std::vector<WriteItem> items;
  EXPECT_TRUE(queue.Pop(10, absl::InfiniteDuration(), &items));
  EXPECT_EQ(items.size(), 1);
  EXPECT_FALSE(queue.Pop(10, absl::InfiniteDuration(), &items));
}

TEST(WriteQueueTest, PausedSessionsComeBackAtHalf) {
  WriteQueue queue(100);
  IngestCounters counters;
  ChannelTable table(&queue, &counters, absl::Seconds(1));
  const auto session =
      std::make_shared<Session>(Session::Shared{&queue, &table, &counters, [](const auto&) {}}, "peer");
  EXPECT_FALSE(queue.Pause(session)) << "there is room";
  queue.Push(Item(60));
  queue.Push(Item(60));
  EXPECT_TRUE(queue.Pause(session));
  EXPECT_TRUE(queue.TakePaused().empty());
  std::vector<WriteItem> items;
  ASSERT_TRUE(queue.Pop(60, absl::ZeroDuration(), &items));
  queue.Release(items);
  EXPECT_TRUE(queue.TakePaused().empty()) << "60 of 100 held";
  ASSERT_TRUE(queue.Pop(60, absl::ZeroDuration(), &items));
  queue.Release(items);
  ASSERT_EQ(queue.TakePaused().size(), 1);
  EXPECT_TRUE(queue.TakePaused().empty()) << "each once";
}

}  // namespace
}  // namespace trimtab::server
