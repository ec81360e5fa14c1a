#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "server/cli/commands.h"
#include "server/cli/text.h"
#include "server/policy/policy_parser.h"

namespace trimtab::cli {
namespace {

// Multi-line text of the server, each line escaped.
void PrintLines(absl::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::printf("%s\n", Escape(text.substr(0, end)).c_str());
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
  }
}

// Works without a server: the parser is the server's own.
int Check(const GlobalOptions& global, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return WrongUsage(absl::StrCat("cannot read policy file '", path, "'"));
  std::string yaml(server::kMaxPolicyBytes + 1, '\0');  // the parser refuses one byte too many
  file.read(yaml.data(), static_cast<std::streamsize>(yaml.size()));
  yaml.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) return WrongUsage(absl::StrCat("cannot read policy file '", path, "'"));
  const server::PolicyCheck check = server::CheckPolicyYaml(yaml);
  v1::CheckPolicyResponse response;
  response.set_ok(check.problems.empty());
  for (const v1::PolicyProblem& problem : check.problems) *response.add_problems() = problem;
  if (response.ok()) response.set_summary(server::PolicySummary(check.policy));
  if (global.json) {
    PrintJson(response);
  } else if (response.ok()) {
    std::printf("%s: ok\n", Escape(path).c_str());
    PrintLines(response.summary());
  } else {
    for (const v1::PolicyProblem& problem : response.problems()) {
      std::fprintf(stderr, "%s:%u:%u: %s\n", Escape(path).c_str(), problem.line(), problem.column(),
                   Escape(problem.message()).c_str());
    }
  }
  return response.ok() ? kOk : kFailed;
}

int Show(const GlobalOptions& global, bool yaml) {
  auto client = Client::Connect(global);
  if (!client.ok()) return Fail(client.status());
  grpc::ClientContext context;
  (*client)->Prepare(&context);
  v1::GetPolicyResponse response;
  if (const auto status = (*client)->control().GetPolicy(&context, {}, &response); !status.ok()) return Fail(status);
  if (global.json) {
    PrintJson(response);
  } else {
    PrintLines(yaml ? response.yaml() : response.summary());
  }
  return kOk;
}

}  // namespace

void AddPolicyCommands(CLI::App* app, Action* action) {
  CLI::App* policy = app->add_subcommand("policy", "Check a policy file, or show the one in force");
  policy->require_subcommand(1);
  static std::string path;
  static bool yaml = false;
  CLI::App* check = policy->add_subcommand("check", "Find every mistake of a file; needs no server");
  check->add_option("FILE", path, "Policy in YAML")->required();
  check->callback([action] { *action = [](const GlobalOptions& global) { return Check(global, path); }; });
  CLI::App* show = policy->add_subcommand("show", "What the server watches, in words");
  show->add_flag("--yaml", yaml, "The policy's text instead");
  show->callback([action] { *action = [](const GlobalOptions& global) { return Show(global, yaml); }; });
}

}  // namespace trimtab::cli
