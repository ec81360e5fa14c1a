// Requests against a real registry and a real store.
#include "server/http/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/unit/server/http/world.h"

namespace trimtab::server {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

class RouterTest : public testing::Test {
 protected:
  HttpReply Get(const std::string& path, std::multimap<std::string, std::string> params = {}) {
    HttpRequest request;
    request.path = path;
    request.params = std::move(params);
    request.host = "localhost:7071";
    return Make().Handle(request);
  }
  json GetJson(const std::string& path, std::multimap<std::string, std::string> params = {}, int status = 200) {
    const HttpReply reply = Get(path, std::move(params));
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(reply.content_type, "application/json");
    return json::parse(reply.body);
  }
  Router Make() { return Router(options_, true, world_.registry(), world_.store(), metrics_, ready_); }

  World world_;
  HttpOptions options_{.version = "1.2.3"};
  HttpServer::RenderMetrics metrics_;
  HttpServer::Ready ready_;
};

TEST_F(RouterTest, AnEmptyServerHasNoRunsAndNoEvents) {
  const json runs = GetJson("/api/v1/runs");
  EXPECT_EQ(runs["version"], "1.2.3");
  EXPECT_TRUE(runs["runs"].empty());
  EXPECT_TRUE(GetJson("/api/v1/events")["events"].empty());
}

TEST_F(RouterTest, TellsARunByAnyNameAndItsState) {
  const std::string names[] = {"plain", "a/b/state", "q\"uo'te <b>&", "\xF0\x9F\x9A\x80 emoji", "per%cent+plus"};
  for (const std::string& name : names) {
    world_.Join(name);
    world_.Step(name, 5, 2.5F);
  }
  EXPECT_EQ(GetJson("/api/v1/runs")["runs"].size(), std::size(names));
  for (const std::string& name : names) {
    const json state = GetJson("/api/v1/runs/" + name + "/state");
    EXPECT_EQ(state["summary"]["run"], name);
    EXPECT_EQ(state["summary"]["last_step"], 5);
    EXPECT_EQ(state["summary"]["loss"], 2.5);
    EXPECT_LT(state["summary"]["age_seconds"], 60);
    EXPECT_EQ(state["modes"], json({"observe", "stabilized"}));
    EXPECT_EQ(state["layers"][1]["name"], "h.1.attn");
    EXPECT_EQ(state["ranks"][0]["host"], "node \"1\"");
    const json& logit = state["metrics"]["max_attention_logit"];
    EXPECT_EQ(logit["shape"], json({2, 3}));
    EXPECT_EQ(logit["values"], json({5, 6, 7, 105, 106, 107}));
    EXPECT_EQ(logit["step"], 5);
  }
}

TEST_F(RouterTest, StateHoldsOnlyTheMetricsAskedFor) {
  world_.Join("r");
  world_.Step("r", 1, 1);
  const json state = GetJson("/api/v1/runs/r/state", {{"metrics", "loss,spectral_norm_q"}});
  EXPECT_EQ(state["metrics"].size(), 2U);
  EXPECT_EQ(state["metrics"]["spectral_norm_q"]["values"], json({1.5, 2.5}));
}

TEST_F(RouterTest, SeriesOfScalarLayerAndHead) {
  world_.Join("r");
  for (uint64_t step = 1; step <= 10; ++step) world_.Step("r", step, static_cast<float>(step) / 2);
  const json loss = GetJson("/api/v1/series", {{"run", "r"}, {"metric", "loss"}, {"from", "3"}, {"to", "5"}});
  ASSERT_EQ(loss["series"].size(), 1U);
  EXPECT_EQ(loss["series"][0]["steps"], json({3, 4, 5}));
  EXPECT_EQ(loss["series"][0]["values"], json({1.5, 2, 2.5}));
  EXPECT_TRUE(loss["series"][0]["layer"].is_null());
  EXPECT_EQ(loss["last_step"], 5);
  EXPECT_FALSE(loss["truncated"]);

  const json folded = GetJson("/api/v1/series", {{"run", "r"}, {"metric", "max_attention_logit"}, {"from", "10"}});
  ASSERT_EQ(folded["series"].size(), World::kLayers);
  EXPECT_EQ(folded["series"][1]["layer"], 1);
  EXPECT_EQ(folded["series"][1]["values"], json({World::Logit(10, 1, 2)}));

  const json cell =
      GetJson("/api/v1/series",
              {{"run", "r"}, {"metric", "max_attention_logit"}, {"layer", "1"}, {"head", "0"}, {"from", "9"}});
  ASSERT_EQ(cell["series"].size(), 1U);
  EXPECT_EQ(cell["series"][0]["head"], 0);
  EXPECT_EQ(cell["series"][0]["values"], json({109, 110}));
}

TEST_F(RouterTest, SeriesThinsToPointsAndKeepsTheSpike) {
  world_.Join("r");
  for (uint64_t step = 1; step <= 400; ++step) world_.Step("r", step, step == 333 ? 99.0F : 1.0F);
  const json loss = GetJson("/api/v1/series", {{"run", "r"}, {"metric", "loss"}, {"points", "30"}});
  EXPECT_EQ(loss["rows"], 400);
  EXPECT_LE(loss["series"][0]["steps"].size(), 30U);
  EXPECT_THAT(loss["series"][0]["values"].get<std::vector<float>>(), Contains(99.0F));
}

TEST_F(RouterTest, CurvesOfManyLayersShareTheLimitOfPoints) {
  options_.max_points = 40;
  world_.Join("r");
  for (uint64_t step = 1; step <= 200; ++step) world_.Step("r", step, 1);
  const json logit = GetJson("/api/v1/series", {{"run", "r"}, {"metric", "max_attention_logit"}, {"points", "40"}});
  for (const json& curve : logit["series"]) EXPECT_LE(curve["steps"].size(), 20U);
  GetJson("/api/v1/series", {{"run", "r"}, {"metric", "loss"}, {"points", "41"}}, 400);
}

TEST_F(RouterTest, SeriesKeepsLivesApartAndOnlyTheNewest) {
  for (uint64_t life = 1; life <= kMaxIncarnations + 1; ++life) {
    world_.Join("r", life);
    world_.Step("r", 10, static_cast<float>(life), life);
    world_.Step("r", 11, static_cast<float>(life), life);
  }
  const json loss = GetJson("/api/v1/series", {{"run", "r"}, {"metric", "loss"}});
  EXPECT_EQ(loss["series"].size(), kMaxIncarnations);
  EXPECT_EQ(loss["incarnations_left_out"], 1);
  EXPECT_EQ(loss["series"].back()["incarnation"], std::to_string(kMaxIncarnations + 1));
  EXPECT_EQ(loss["series"].back()["steps"], json({10, 11}));
}

TEST_F(RouterTest, SeriesShowsValuesThatAreNotFinite) {
  world_.Join("r");
  world_.Step("r", 1, std::numeric_limits<float>::quiet_NaN());
  world_.Step("r", 2, std::numeric_limits<float>::infinity());
  const json loss = GetJson("/api/v1/series", {{"run", "r"}, {"metric", "loss"}});
  EXPECT_EQ(loss["series"][0]["values"], json({"NaN", "Infinity"}));
}

TEST_F(RouterTest, EventsComeWithTheirEvidence) {
  world_.Join("r");
  world_.Event("r", "first <b>", R"({"layer": 3, "values": [1, 2]})");
  world_.Event("r", "second", "not json");
  const json all = GetJson("/api/v1/events", {{"run", "r"}});
  std::vector<json> alerts;
  for (const json& event : all["events"]) {
    if (event["kind"] == "alert") alerts.push_back(event);
  }
  ASSERT_EQ(alerts.size(), 2U);
  EXPECT_EQ(alerts[0]["message"], "first <b>");
  EXPECT_EQ(alerts[0]["severity"], "critical");
  EXPECT_EQ(alerts[0]["evidence"]["values"], json({1, 2}));
  EXPECT_EQ(alerts[1]["evidence"], "not json");
  EXPECT_EQ(all["last_id"], alerts[1]["id"]);
  const json later = GetJson("/api/v1/events", {{"run", "r"}, {"after", to_string(alerts[0]["id"])}});
  ASSERT_EQ(later["events"].size(), 1U);
  EXPECT_EQ(later["events"][0]["message"], "second");
  EXPECT_EQ(GetJson("/api/v1/events", {{"run", "r"}, {"max", "1"}})["events"][0]["message"], "second");
  GetJson("/api/v1/events", {{"max", "1001"}}, 400);
}

TEST_F(RouterTest, WrongRequestsAreNamedInJson) {
  world_.Join("r");
  world_.Step("r", 1, 1);
  const auto error = [&](const std::string& path, std::multimap<std::string, std::string> params, int status) {
    return GetJson(path, std::move(params), status)["error"].get<std::string>();
  };
  EXPECT_THAT(error("/api/v1/series", {{"metric", "loss"}}, 400), HasSubstr("'run' is missing"));
  EXPECT_THAT(error("/api/v1/series", {{"run", "r"}, {"metric", "loos"}}, 404), HasSubstr("loss"));
  EXPECT_THAT(error("/api/v1/series", {{"run", "none"}, {"metric", "loss"}}, 404), HasSubstr("r"));
  EXPECT_THAT(error("/api/v1/series", {{"run", "r"}, {"metric", "loss"}, {"layer", "0"}}, 400), HasSubstr("no layers"));
  EXPECT_THAT(
      error("/api/v1/series", {{"run", "r"}, {"metric", "spectral_norm_q"}, {"layer", "0"}, {"head", "0"}}, 400),
      HasSubstr("no heads"));
  EXPECT_THAT(error("/api/v1/series", {{"run", "r"}, {"metric", "spectral_norm_q"}, {"layer", "2"}}, 404),
              HasSubstr("2 layers"));
  EXPECT_THAT(error("/api/v1/series", {{"run", "r"}, {"metric", "loss"}, {"head", "0"}}, 400),
              HasSubstr("needs 'layer'"));
  EXPECT_THAT(error("/api/v1/series", {{"run", "r"}, {"metric", "loss"}, {"from", "2"}, {"to", "1"}}, 400),
              HasSubstr("above"));
  EXPECT_THAT(error("/api/v1/series", {{"run", "r"}, {"metric", "loss"}, {"rank", "5"}}, 404), HasSubstr("rank 5"));
  EXPECT_THAT(error("/api/v1/series",
                    {{"run", "r"}, {"metric", "max_attention_logit"}, {"layer", "0"}, {"head", "99"}}, 404),
              HasSubstr("no head 99"));
  EXPECT_THAT(error("/api/v1/events", {{"run", "none"}}, 404), HasSubstr("none"));
  EXPECT_THAT(error("/api/v1/runs/r/state", {{"metrics", "loss,loos"}}, 404), HasSubstr("loos"));
  EXPECT_THAT(error("/api/v1/runs/none/state", {}, 404), HasSubstr("none"));
  EXPECT_THAT(error("/api/v1/runs//state", {}, 404), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(error("/api/v1/runs", {{"x", "1"}}, 400), HasSubstr("unknown parameter 'x'"));
  EXPECT_THAT(error("/api/v2/runs", {}, 404), HasSubstr("/api/v1/runs"));
  EXPECT_THAT(error("/../etc/passwd", {}, 404), HasSubstr("page"));
}

TEST_F(RouterTest, AnswersOnlyReadsUnderAKnownName) {
  HttpRequest request;
  request.path = "/api/v1/runs";
  request.host = "evil.example";
  EXPECT_EQ(Make().Handle(request).status, 421);
  request.host = "127.0.0.1";
  request.method = "POST";
  const HttpReply refused = Make().Handle(request);
  EXPECT_EQ(refused.status, 405);
  EXPECT_THAT(refused.headers, Contains(std::pair<std::string, std::string>("Allow", "GET, HEAD")));
  request.method = "HEAD";
  EXPECT_EQ(Make().Handle(request).status, 200);
}

TEST_F(RouterTest, HealthReadinessAndMetrics) {
  EXPECT_EQ(Get("/healthz").status, 200);
  EXPECT_EQ(Get("/readyz").status, 200);
  EXPECT_EQ(Get("/metrics").status, 404);
  ready_ = [] { return absl::UnavailableError("store is read-only"); };
  EXPECT_EQ(Get("/readyz").status, 503);
  EXPECT_THAT(Get("/readyz").body, HasSubstr("read-only"));
  metrics_ = [] { return std::string("trimtab_up 1\n"); };
  EXPECT_EQ(Get("/metrics").body, "trimtab_up 1\n");
  EXPECT_THAT(Get("/metrics").content_type, HasSubstr("version=0.0.4"));
}

TEST_F(RouterTest, ServesThePageWithRevalidation) {
  const HttpReply page = Get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.content_type, HasSubstr("text/html"));
  EXPECT_THAT(page.body, HasSubstr("app.js"));
  EXPECT_EQ(Get("/index.html").body, page.body);
  EXPECT_THAT(Get("/app.js").content_type, HasSubstr("javascript"));
  std::string etag;
  for (const auto& [name, value] : page.headers) {
    if (name == "ETag") etag = value;
  }
  HttpRequest again;
  again.path = "/";
  again.host = "localhost";
  again.if_none_match = etag;
  EXPECT_EQ(Make().Handle(again).status, 304);
  EXPECT_TRUE(Make().Handle(again).body.empty());
}

}  // namespace
}  // namespace trimtab::server
