// The executable: what it prints and with which status it ends.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "server/store/store.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/server_process.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"
#include "tests/unit/server/support/test_courier.h"
#include "tests/unit/server/support/test_server.h"
#include "trimtab/v1/control.grpc.pb.h"
#include "trimtab/v1/query.grpc.pb.h"

namespace trimtab::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class TrimtabdTest : public testing::Test {
 protected:
  std::vector<std::string> Flags(std::vector<std::string> more = {}) {
    std::vector<std::string> flags = {"--data-dir", folder_.File("data"), "--listen",     "127.0.0.1:0",
                                      "--http",     "127.0.0.1:0",        "--ready-file", folder_.File("ready")};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  std::unique_ptr<ServerProcess> Start(std::vector<std::string> flags, const std::string& output = "out") {
    return std::make_unique<ServerProcess>(TRIMTABD, flags, folder_.File(output));
  }
  void ExpectRefused(std::vector<std::string> flags, int status, const std::string& text) {
    const std::string name = "refused" + std::to_string(++refused_);
    const auto server = Start(std::move(flags), name);
    EXPECT_EQ(server->Wait(), status);
    const std::string said = server->output();
    EXPECT_THAT(said, AllOf(testing::StartsWith("trimtabd: "), HasSubstr(text)));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << "one line: " << said;
  }

  TempDir folder_;
  int refused_ = 0;
};

TEST_F(TrimtabdTest, ServesAndEndsCleanly) {
  const auto server = Start(Flags());
  ASSERT_TRUE(server->WaitReady(folder_.File("ready"))) << server->output();
  EXPECT_THAT(server->output(), HasSubstr("ready: grpc " + server->grpc_address() + " http " + server->http_address()));
  TestCourier courier(server->grpc_address());
  courier.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier.WaitWelcome(1));
  for (uint64_t s = 1; s <= 20; ++s) courier.Send(StepsMessage(1, {LossStep(s, s, 1)}));
  ASSERT_TRUE(courier.WaitDurable(1, 20));
  const auto channel = grpc::CreateChannel(server->grpc_address(), grpc::InsecureChannelCredentials());
  // The picture of the runs follows the durable acknowledgement.
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext list;
    v1::ListRunsResponse runs;
    return v1::QueryService::NewStub(channel)->ListRuns(&list, {}, &runs).ok() && runs.runs_size() == 1 &&
           runs.runs(0).last_step() == 20;
  }));
  grpc::ClientContext policy;
  v1::GetPolicyResponse loaded;
  ASSERT_TRUE(v1::ControlService::NewStub(channel)->GetPolicy(&policy, {}, &loaded).ok());
  EXPECT_FALSE(loaded.yaml().empty());
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 0) << server->output();
  EXPECT_EQ(courier.WaitEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  auto store = Store::Open({.path = folder_.File("data")});
  ASSERT_THAT(store, IsOk());
  EXPECT_EQ(*(*store)->CountRows("run", "loss", 0, 0, 0), 20);
}

// Sends one message on a method known by name only and returns the bytes of the first answer.
std::string CallByName(const std::string& address, const std::string& method, const std::string& request) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  if (!next()) return "no call";
  const grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  if (!next()) return "no write";
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  if (!next()) return "no answer";
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return "no bytes";
  std::string bytes;
  for (const grpc::Slice& part : slices) bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return bytes;
}

TEST_F(TrimtabdTest, HealthAndReflectionAnswer) {
  const auto server = Start(Flags());
  ASSERT_TRUE(server->WaitReady(folder_.File("ready"))) << server->output();
  // HealthCheckResponse{status: SERVING}
  EXPECT_EQ(CallByName(server->grpc_address(), "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01", 2));
  // ServerReflectionRequest{list_services: "*"}
  const std::string services =
      CallByName(server->grpc_address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3A\x01*");
  for (const char* name : {"TelemetryService", "QueryService", "ControlService"}) {
    EXPECT_THAT(services, HasSubstr(std::string("trimtab.v1.") + name));
  }
}

TEST_F(TrimtabdTest, BadSettingsExitWith2) {
  ExpectRefused({"--lisen", "x"}, 2, "did you mean --listen?");
  std::ofstream(folder_.File("c.yaml")) << "listen: 127.0.0.1:0\nmax_serie: 3\n";
  ExpectRefused({"--config", folder_.File("c.yaml")}, 2,
                "c.yaml:2:1: unknown key \"max_serie\"; did you mean \"max_series\"?");
  ExpectRefused({"--listen", "0.0.0.0:7070"}, 2, "--allow-remote");
  std::ofstream(folder_.File("p.yaml")) << "rulez: []\n";
  ExpectRefused({"--policy", folder_.File("p.yaml")}, 2, "p.yaml:1:1");
  ExpectRefused({"--policy", folder_.File("none.yaml")}, 2, "none.yaml");
}

TEST_F(TrimtabdTest, CheckConfigTouchesNothing) {
  std::ofstream(folder_.File("c.yaml")) << "data_dir: " << folder_.File("data") << "\n";
  const auto server = Start({"--config", folder_.File("c.yaml"), "--check-config"});
  EXPECT_EQ(server->Wait(), 0);
  EXPECT_EQ(server->output(), "configuration is good\n");
  EXPECT_FALSE(std::filesystem::exists(folder_.File("data")));
}

TEST_F(TrimtabdTest, VersionAndHelp) {
  const auto version = Start({"--version"}, "version");
  EXPECT_EQ(version->Wait(), 0);
  EXPECT_THAT(version->output(), MatchesRegex("trimtabd [0-9.]+\n"));
  const auto help = Start({"--help"}, "help");
  EXPECT_EQ(help->Wait(), 0);
  EXPECT_THAT(help->output(), HasSubstr("--silent-after-seconds"));
}

TEST_F(TrimtabdTest, ATakenPortALockedFolderAndANewerFormatExitWith1) {
  const auto server = Start(Flags());
  ASSERT_TRUE(server->WaitReady(folder_.File("ready"))) << server->output();
  const std::string other = folder_.File("other");
  ExpectRefused({"--data-dir", other, "--http", "", "--listen", server->grpc_address()}, 1,
                "cannot listen on " + server->grpc_address() +
                    ": Address already in use; stop what uses it or choose "
                    "another address with --listen");
  ExpectRefused({"--data-dir", other, "--listen", "127.0.0.1:0", "--http", server->http_address()}, 1, "--http");
  ExpectRefused({"--data-dir", folder_.File("data"), "--listen", "127.0.0.1:0", "--http", ""}, 1,
                "in use by process " + std::to_string(server->pid()) + " (trimtabd); stop it");
  const std::string newer = folder_.File("newer");
  std::filesystem::create_directory(newer);
  std::ofstream(newer + "/FORMAT") << "trimtab-store 7\n";
  ExpectRefused({"--data-dir", newer, "--listen", "127.0.0.1:0", "--http", ""}, 1, "store format 7");
  ExpectRefused({"--data-dir", folder_.File("ready"), "--listen", "127.0.0.1:0", "--http", ""}, 1, "not a folder");
  // The one that was there first is not disturbed.
  const auto channel = grpc::CreateChannel(server->grpc_address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(v1::QueryService::NewStub(channel)->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.http_address(), server->http_address());
}

TEST_F(TrimtabdTest, AnOldReadyFileIsNotTakenForTheNewServers) {
  std::ofstream(folder_.File("ready")) << "{\"grpc\":\"127.0.0.1:1\",\"http\":\"\",\"pid\":1}";
  std::ofstream(folder_.File("blocker")) << "a file where the data folder should be";
  const auto server = Start({"--data-dir", folder_.File("blocker"), "--ready-file", folder_.File("ready"), "--listen",
                             "127.0.0.1:0", "--http", ""});
  EXPECT_EQ(server->Wait(), 1);
  EXPECT_FALSE(std::filesystem::exists(folder_.File("ready")));
}

TEST_F(TrimtabdTest, ARestartShowsTheRunAndResumesIt) {
  {
    const auto server = Start(Flags());
    ASSERT_TRUE(server->WaitReady(folder_.File("ready"))) << server->output();
    TestCourier courier(server->grpc_address());
    courier.Send(HelloMessage(1, Info("run")));
    courier.Send(StepsMessage(1, {LossStep(1, 41, 1), LossStep(2, 42, 0.5F)}));
    ASSERT_TRUE(courier.WaitDurable(1, 2));
    server->Signal(SIGTERM);
    ASSERT_EQ(server->Wait(), 0);
  }
  const auto server = Start(Flags());
  ASSERT_TRUE(server->WaitReady(folder_.File("ready"))) << server->output();
  const auto channel = grpc::CreateChannel(server->grpc_address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::ListRunsResponse runs;
  ASSERT_TRUE(v1::QueryService::NewStub(channel)->ListRuns(&context, {}, &runs).ok());
  ASSERT_EQ(runs.runs_size(), 1);
  EXPECT_EQ(runs.runs(0).last_step(), 42);
  EXPECT_EQ(runs.runs(0).status(), "silent");
  TestCourier courier(server->grpc_address());
  courier.Send(HelloMessage(1, Info("run")));
  const auto welcome = courier.WaitWelcome(1);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->last_durable_sequence(), 2);
}

}  // namespace
}  // namespace trimtab::server
