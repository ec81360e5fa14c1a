// A connection to trimtabd, and how a command ends.
#ifndef TRIMTAB_SERVER_CLI_CLIENT_H_
#define TRIMTAB_SERVER_CLI_CLIENT_H_

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trimtab/v1/control.grpc.pb.h"
#include "trimtab/v1/query.grpc.pb.h"

namespace trimtab::cli {

// Exit status of the program.
enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kUnreachable = 3 };

// Options that every command has.
struct GlobalOptions {
  std::string server = "127.0.0.1:7070";
  bool json = false;
  double timeout_seconds = 10;  // for one answer; switches wait for their own deadline
};

class Client {
 public:
  // UNAVAILABLE when nothing answers at the address within the time-out; the message names the fix.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const GlobalOptions& options);

  v1::QueryService::Stub& query() { return *query_; }
  v1::ControlService::Stub& control() { return *control_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Sets the deadline of a call; 0: the global time-out.
  void Prepare(grpc::ClientContext* context, double seconds = 0) const;

  // The run of that exact name, else the only run whose name begins with `wanted`; with "" the only run there is.
  // NOT_FOUND and FAILED_PRECONDITION (several) name the runs.
  absl::StatusOr<std::string> ResolveRun(const std::string& wanted);
  absl::StatusOr<v1::RunState> State(const std::string& run);

 private:
  explicit Client(const GlobalOptions& options);

  const GlobalOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::QueryService::Stub> query_;
  std::unique_ptr<v1::ControlService::Stub> control_;
};

// Prints "trimtab: …" to stderr, escaped, on one line. Returns kUnreachable for UNAVAILABLE, else kFailed.
int Fail(const absl::Status& status);
int Fail(const grpc::Status& status);
// Prints one line to stderr and returns kUsage.
int WrongUsage(const std::string& message);

// One message as proto3 JSON on one line, fields of zero included.
void PrintJson(const google::protobuf::Message& message);

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_CLIENT_H_
