// QueryService over a real port.
#include "server/query/query_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/test_courier.h"
#include "tests/unit/server/support/test_server.h"
#include "trimtab/v1/query.grpc.pb.h"

namespace trimtab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QueryTest : public testing::Test {
 protected:
  void SetUp() override {
    stub_ = v1::QueryService::NewStub(grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials()));
  }

  void Feed(uint64_t steps) {
    TestCourier courier(server_.address());
    courier.Send(HelloMessage(1, Info("run")));
    for (uint64_t s = 1; s <= steps; ++s) {
      v1::Step step = LossStep(s, s, static_cast<float>(s));
      const auto x = static_cast<float>(s);
      *step.add_blocks() = Floats(kMaxLogit, {2, 2}, {x, x + 1, x + 2, x + 3});
      courier.Send(StepsMessage(1, {step}));
    }
    courier.Send(GoodbyeMessage(1, true));
    ASSERT_TRUE(courier.Finish().ok());
  }

  std::vector<v1::SeriesPoint> Read(v1::ReadSeriesRequest request, grpc::StatusCode expected = grpc::StatusCode::OK) {
    grpc::ClientContext context;
    request.set_run(request.run().empty() ? "run" : request.run());
    auto reader = stub_->ReadSeries(&context, request);
    std::vector<v1::SeriesPoint> points;
    v1::SeriesChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_LE(chunk.points_size(), 256);
      points.insert(points.end(), chunk.points().begin(), chunk.points().end());
    }
    status_ = reader->Finish();
    EXPECT_EQ(status_.error_code(), expected) << status_.error_message();
    return points;
  }

  std::vector<uint64_t> Steps(const v1::ReadSeriesRequest& request) {
    std::vector<uint64_t> steps;
    for (const auto& point : Read(request)) steps.push_back(point.step());
    return steps;
  }

  TempDir folder_;
  TestServer server_{folder_.path(), {}, {.max_followers = 2, .version = "9.9", .limits = {{"heads", 1024}}}};
  std::unique_ptr<v1::QueryService::Stub> stub_;
  grpc::Status status_;
};

TEST_F(QueryTest, ListRunsAndGetRun) {
  Feed(3);
  grpc::ClientContext list;
  v1::ListRunsResponse runs;
  ASSERT_TRUE(stub_->ListRuns(&list, {}, &runs).ok());
  ASSERT_EQ(runs.runs_size(), 1);
  EXPECT_EQ(runs.runs(0).run(), "run");
  EXPECT_EQ(runs.runs(0).last_step(), 3);
  EXPECT_EQ(runs.runs(0).status(), "finished");
  grpc::ClientContext get;
  v1::GetRunRequest request;
  request.set_run("run");
  v1::RunState state;
  ASSERT_TRUE(stub_->GetRun(&get, request, &state).ok());
  EXPECT_EQ(state.latest_size(), 2);
  grpc::ClientContext wrong;
  request.set_run("nun");
  const grpc::Status status = stub_->GetRun(&wrong, request, &state);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("\"run\""));
}

TEST_F(QueryTest, SeriesRangesAndCells) {
  Feed(600);  // more than one chunk
  v1::ReadSeriesRequest request;
  request.set_metric("loss");
  EXPECT_EQ(Steps(request).size(), 600);
  request.set_from_step(10);
  request.set_to_step(12);
  EXPECT_THAT(Steps(request), ElementsAre(10, 11, 12));
  request.set_metric("max_attention_logit");
  EXPECT_THAT(Read(request)[0].block().float32(), ElementsAre(10, 11, 12, 13));
  request.set_layer(1);
  EXPECT_THAT(Read(request)[0].block().float32(), ElementsAre(12, 13));
  request.set_head(1);
  EXPECT_THAT(Read(request)[2].block().float32(), ElementsAre(15));
  request.set_layer(2);
  Read(request, grpc::StatusCode::OUT_OF_RANGE);
  request.set_metric("lost");
  Read(request, grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status_.error_message(), HasSubstr("it has loss"));
}

TEST_F(QueryTest, ThinningKeepsTheFirstAndTheLast) {
  Feed(101);
  v1::ReadSeriesRequest request;
  request.set_metric("loss");
  request.set_max_points(11);
  EXPECT_THAT(Steps(request), ElementsAre(1, 11, 21, 31, 41, 51, 61, 71, 81, 91, 101));
  request.set_max_points(4);
  EXPECT_THAT(Steps(request), ElementsAre(1, 35, 69, 101));
  request.set_max_points(1);
  EXPECT_THAT(Steps(request), ElementsAre(1, 101)) << "never fewer than first and last";
  request.set_max_points(101);
  EXPECT_EQ(Steps(request).size(), 101);
  for (uint64_t max = 2; max <= 110; ++max) {
    request.set_max_points(max);
    const auto steps = Steps(request);
    EXPECT_LE(steps.size(), max);
    EXPECT_EQ(steps.front(), 1);
    EXPECT_EQ(steps.back(), 101);
  }
}

TEST_F(QueryTest, EventsByIdAndFollowed) {
  Feed(1);
  const auto list = [&](uint64_t after, uint64_t max) {
    grpc::ClientContext context;
    v1::ListEventsRequest request;
    request.set_after_id(after);
    request.set_max_events(max);
    auto reader = stub_->ListEvents(&context, request);
    std::vector<std::string> kinds;
    v1::Event event;
    while (reader->Read(&event)) kinds.push_back(event.kind());
    EXPECT_TRUE(reader->Finish().ok());
    return kinds;
  };
  EXPECT_THAT(list(0, 0), ElementsAre("run_started", "rank_joined", "rank_left", "run_finished"));
  EXPECT_THAT(list(0, 2), ElementsAre("rank_left", "run_finished")) << "the most recent";
  EXPECT_THAT(list(1, 2), ElementsAre("rank_joined", "rank_left"));

  grpc::ClientContext context;
  v1::ListEventsRequest follow;
  follow.set_run("run");
  follow.set_after_id(3);
  follow.set_follow(true);
  auto reader = stub_->ListEvents(&context, follow);
  v1::Event event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), "run_finished");
  v1::Event other, mine;
  other.set_run("another run");
  mine.set_run("run");
  mine.set_kind("alert");
  ASSERT_THAT(server_.store->Append(other), IsOk());
  ASSERT_THAT(server_.store->Append(mine), IsOk());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), "alert");
  EXPECT_EQ(event.id(), 6);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(QueryTest, FollowersHaveABoundAndEndAtShutdown) {
  v1::ListEventsRequest follow;
  follow.set_follow(true);
  v1::Event first;
  ASSERT_THAT(server_.store->Append(first), IsOk());
  grpc::ClientContext contexts[3];
  std::unique_ptr<grpc::ClientReader<v1::Event>> readers[3];
  v1::Event event;
  for (int i = 0; i < 2; ++i) {
    readers[i] = stub_->ListEvents(&contexts[i], follow);
    ASSERT_TRUE(readers[i]->Read(&event));
  }
  readers[2] = stub_->ListEvents(&contexts[2], follow);
  EXPECT_FALSE(readers[2]->Read(&event));
  const grpc::Status refused = readers[2]->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("2 followers"));
  EXPECT_EQ(server_.query->refused(), 1);
  std::thread stopper([&] { server_.Stop(); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(readers[i]->Read(&event));
    EXPECT_EQ(readers[i]->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  stopper.join();
}

TEST_F(QueryTest, ServerInfo) {
  Feed(1);
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.version(), "9.9");
  EXPECT_EQ(info.store_format(), Store::kFormatVersion);
  EXPECT_EQ(info.runs(), 1);
  EXPECT_EQ(info.events(), 4);
  EXPECT_EQ(info.limits().at("heads"), 1024);
}

}  // namespace
}  // namespace trimtab::server
