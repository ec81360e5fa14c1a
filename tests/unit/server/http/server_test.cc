// The server over real sockets.
#include "server/http/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/unit/server/http/world.h"

namespace trimtab::server {
namespace {

using testing::HasSubstr;

class HttpServerTest : public testing::Test {
 protected:
  std::unique_ptr<HttpServer> Start(HttpOptions options = {}) {
    options.port = 0;
    auto server = HttpServer::Create(options, world_.registry(), world_.store(), [] { return std::string("up 1\n"); });
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  static httplib::Client Client(const HttpServer& server) { return httplib::Client("127.0.0.1", server.port()); }

  // Sends raw bytes and returns what comes until the server closes or is quiet.
  static std::string Raw(const HttpServer& server, const std::string& bytes) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval limit{8, 0};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::string answer;
    char buffer[4096];
    ssize_t got = 0;
    while ((got = recv(socket, buffer, sizeof(buffer), 0)) > 0) answer.append(buffer, static_cast<size_t>(got));
    close(socket);
    return answer;
  }

  World world_;
};

TEST_F(HttpServerTest, ServesOnAFreePortAndSaysWhich) {
  const auto server = Start();
  EXPECT_GT(server->port(), 0);
  EXPECT_EQ(server->address(), "127.0.0.1:" + std::to_string(server->port()));
  auto client = Client(*server);
  const auto page = client.Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_THAT(page->body, HasSubstr("<title>trimtab</title>"));
  EXPECT_EQ(client.Get("/metrics")->body, "up 1\n");
  EXPECT_GE(server->statistics().requests, 2U);
}

TEST_F(HttpServerTest, EveryReplyCarriesTheSecurityHeadersAndNoCors) {
  const auto server = Start();
  auto client = Client(*server);
  for (const char* path : {"/", "/api/v1/runs", "/nothing", "/metrics"}) {
    const auto reply = client.Get(path, {{"Origin", "http://evil.example"}});
    ASSERT_TRUE(reply);
    EXPECT_THAT(reply->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'self'")) << path;
    EXPECT_EQ(reply->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(reply->get_header_value("X-Frame-Options"), "DENY");
    EXPECT_FALSE(reply->has_header("Access-Control-Allow-Origin"));
  }
}

TEST_F(HttpServerTest, RunNamesTravelPercentEncoded) {
  const std::string name = "a/b \"c\" \xF0\x9F\x9A\x80 100% <script>alert(1)</script>";
  world_.Join(name);
  world_.Step(name, 3, 0.5F);
  const auto server = Start();
  auto client = Client(*server);
  std::string encoded;
  for (const unsigned char c : name) {
    char hex[4];
    snprintf(hex, sizeof(hex), "%%%02X", c);
    encoded += hex;
  }
  for (const std::string& path : {"/api/v1/runs/" + encoded + "/state", "/api/v1/series?metric=loss&run=" + encoded}) {
    const auto reply = client.Get(path);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200) << reply->body;
    EXPECT_EQ(reply->body.find("<script>"), std::string::npos);
    EXPECT_THAT(reply->body, HasSubstr("\xF0\x9F\x9A\x80"));
  }
}

TEST_F(HttpServerTest, RefusesForeignHostsAndMalformedRequestsInJson) {
  const auto server = Start();
  EXPECT_THAT(Raw(*server, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"), HasSubstr(" 421 "));
  EXPECT_THAT(Raw(*server, "GET / HTTP/1.1\r\nConnection: close\r\n\r\n"), HasSubstr(" 421 "));
  EXPECT_THAT(Raw(*server, "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n"),
              HasSubstr(" 421 "));
  EXPECT_THAT(Raw(*server, "NONSENSE\r\n\r\n"), HasSubstr("{\"error\":"));
  const std::string long_uri = Raw(*server, "GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(long_uri, HasSubstr(" 414 "));
  EXPECT_THAT(long_uri, HasSubstr("{\"error\":"));
  EXPECT_THAT(Raw(*server, "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"),
              HasSubstr(" 405 "));
  EXPECT_GE(server->statistics().refused, 5U);
}

TEST_F(HttpServerTest, IgnoresRanges) {
  const auto server = Start();
  auto client = Client(*server);
  const std::string whole = client.Get("/style.css")->body;
  const auto reply = client.Get("/style.css", {{"Range", "bytes=0-9,0-9,0-9,0-9"}});
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, whole);
}

TEST_F(HttpServerTest, ManyClientsAtOnceOverFewThreads) {
  world_.Join("r");
  for (uint64_t step = 1; step <= 20; ++step) world_.Step("r", step, 1);
  HttpOptions options;
  options.threads = 3;
  options.max_queued_connections = 2;
  const auto server = Start(options);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&] {
      auto client = Client(*server);
      for (int k = 0; k < 10; ++k) {
        const auto reply = client.Get("/api/v1/series?run=r&metric=max_attention_logit");
        if (reply && reply->status == 200) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 120);
}

TEST_F(HttpServerTest, ATakenPortIsAClearError) {
  const auto server = Start();
  HttpOptions options;
  options.port = server->port();
  const auto second = HttpServer::Create(options, world_.registry(), world_.store());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(server->port())));
}

TEST_F(HttpServerTest, WrongAddressesAreRefused) {
  for (const char* address : {"", "127.0.0.1:80", "a:b:c"}) {
    HttpOptions options;
    options.address = address;
    options.port = 0;
    const auto server = HttpServer::Create(options, world_.registry(), world_.store());
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  HttpOptions options;
  options.port = 70000;
  EXPECT_EQ(HttpServer::Create(options, world_.registry(), world_.store()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(HttpServerTest, ShutsDownTwiceAndFreesThePort) {
  auto server = Start();
  const int port = server->port();
  Client(*server).Get("/healthz");
  server->Shutdown();
  server->Shutdown();
  EXPECT_FALSE(httplib::Client("127.0.0.1", port).Get("/healthz"));
  HttpOptions options;
  options.port = port;
  EXPECT_TRUE(HttpServer::Create(options, world_.registry(), world_.store()).ok());
}

}  // namespace
}  // namespace trimtab::server
