#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/status/status.h"
#include "server/cli/commands.h"
#include "server/cli/terminal.h"
#include "server/cli/text.h"
#include "server/http/fold.h"

namespace trimtab::cli {
namespace {

constexpr uint64_t kTablePoints = 24;
constexpr double kSeriesSeconds = 300;  // a whole series of a long run

struct SeriesOptions {
  std::string run, metric = "loss";
  uint32_t rank = 0;
  std::optional<uint32_t> layer, head;
  uint64_t from = 0, to = 0;
  std::optional<uint64_t> points;
  bool csv = false;
};

absl::StatusOr<v1::MetricDescriptor> FindMetric(const v1::RunState& state, const SeriesOptions& options) {
  std::vector<std::string> names;
  for (const v1::MetricDescriptor& metric : state.metrics()) {
    if (metric.name() == options.metric) {
      if (options.layer.has_value() && metric.axes_size() < 1) {
        return absl::InvalidArgumentError(absl::StrCat("metric ", metric.name(), " has no layers; leave --layer out"));
      }
      if (options.head.has_value() && metric.axes_size() < 2) {
        return absl::InvalidArgumentError(absl::StrCat("metric ", metric.name(), " has no heads; leave --head out"));
      }
      return metric;
    }
    names.push_back(metric.name());
  }
  return absl::NotFoundError(
      absl::StrCat("the run has no metric '", options.metric, "'; it has: ", absl::StrJoin(names, ", ")));
}

// Layers and heads that the options leave. The server has cut a block to one cell when `single`.
struct Selection {
  std::optional<uint32_t> layer, head;
  bool single = false;
};

class Output {
 public:
  virtual ~Output() = default;
  virtual void Add(const v1::SeriesPoint& point) = 0;
  virtual void Finish() {}
};

class CsvOutput : public Output {
 public:
  explicit CsvOutput(Selection selection) : selection_(selection) {
    std::printf("step,time_unix_nanos,incarnation,layer,head,value\n");
  }
  void Add(const v1::SeriesPoint& point) override {
    const server::BlockShape shape = server::ShapeOf(point.block());
    const bool layered = point.block().shape_size() > 0 || selection_.layer.has_value();
    const bool headed = point.block().shape_size() > 1 || selection_.head.has_value();
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      if (!selection_.single && selection_.layer.value_or(layer) != layer) continue;
      for (uint32_t head = 0; head < shape.heads; ++head) {
        const uint32_t named_layer = selection_.layer.value_or(layer), named_head = selection_.head.value_or(head);
        std::printf("%" PRIu64 ",%" PRId64 ",%" PRIu64 ",%s,%s,%s\n", point.step(), point.time_unix_nanos(),
                    point.incarnation(), layered ? absl::StrCat(named_layer).c_str() : "",
                    headed ? absl::StrCat(named_head).c_str() : "", Value(point.block(), layer, head).c_str());
      }
    }
  }

 private:
  // Exact: whole numbers as they are, floats with the nine digits that bring them back.
  static std::string Value(const v1::Block& block, uint32_t layer, uint32_t head) {
    const uint64_t index = uint64_t{layer} * server::ShapeOf(block).heads + head;
    if (index < static_cast<uint64_t>(block.uint64_size())) return absl::StrCat(block.uint64(static_cast<int>(index)));
    return absl::StrFormat("%.9g", server::Cell(block, layer, head));
  }
  const Selection selection_;
};

class JsonOutput : public Output {
 public:
  void Add(const v1::SeriesPoint& point) override {
    *chunk_.add_points() = point;
    if (chunk_.points_size() >= kPointsPerLine) Flush();
  }
  void Finish() override {
    if (chunk_.points_size() > 0 || !printed_) Flush();
  }

 private:
  static constexpr int kPointsPerLine = 256;
  void Flush() {
    PrintJson(chunk_);
    chunk_.Clear();
    printed_ = true;
  }
  v1::SeriesChunk chunk_;
  bool printed_ = false;
};

// One column for a scalar or one cell; else one for each layer (heads folded) or, with --layer, for each head.
class TableOutput : public Output {
 public:
  TableOutput(const v1::MetricDescriptor& metric, Selection selection) : metric_(metric), selection_(selection) {}

  void Add(const v1::SeriesPoint& point) override {
    const v1::Block& block = point.block();
    const server::BlockShape shape = server::ShapeOf(block);
    std::vector<std::string> cells = {Count(point.step()), LocalTime(point.time_unix_nanos())};
    if (selection_.single || block.shape_size() == 0) {
      cells.push_back(Number(server::Cell(block, 0, 0), metric_.unit()));
      Start({absl::StrCat(">", metric_.name())});
    } else if (selection_.layer.has_value()) {
      std::vector<std::string> names;
      for (uint32_t head = 0; head < shape.heads; ++head) {
        names.push_back(absl::StrCat(">H", head));
        cells.push_back(Number(server::Cell(block, *selection_.layer, head), metric_.unit()));
      }
      Start(names);
    } else {
      std::vector<std::string> names;
      for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        names.push_back(absl::StrCat(">L", layer));
        cells.push_back(Number(server::FoldLayer(block, metric_.aggregation(), layer, std::nullopt), metric_.unit()));
      }
      Start(names);
    }
    table_->Add(cells);
  }

  void Finish() override {
    if (!table_.has_value()) {
      std::printf("No samples in this range.\n");
      return;
    }
    std::printf("%s", table_->Render(TerminalWidth()).c_str());
  }

 private:
  void Start(std::vector<std::string> columns) {
    if (table_.has_value()) return;
    columns.insert(columns.begin(), {">STEP", "TIME"});
    table_.emplace(std::move(columns));
  }
  const v1::MetricDescriptor metric_;
  const Selection selection_;
  std::optional<Table> table_;
};

int Series(const GlobalOptions& global, const SeriesOptions& options) {
  if (options.to != 0 && options.from > options.to) return WrongUsage("--from is above --to");
  if (options.csv && global.json) return WrongUsage("--csv and --json exclude each other");
  auto client = Client::Connect(global);
  if (!client.ok()) return Fail(client.status());
  const auto run = (*client)->ResolveRun(options.run);
  if (!run.ok()) return Fail(run.status());
  const auto state = (*client)->State(*run);
  if (!state.ok()) return Fail(state.status());
  const auto metric = FindMetric(*state, options);
  if (!metric.ok()) return Fail(metric.status());
  const bool known = std::any_of(state->ranks().begin(), state->ranks().end(),
                                 [&](const v1::RankInfo& rank) { return rank.rank() == options.rank; });
  if (!known) {
    return Fail(absl::NotFoundError(absl::StrCat("the run has no rank ", options.rank, "; its world size is ",
                                                 state->summary().world_size(), " and ", state->ranks_size(),
                                                 " of them reported")));
  }

  Selection selection{options.layer, options.head, false};
  v1::ReadSeriesRequest request;
  request.set_run(*run);
  request.set_metric(options.metric);
  request.set_rank(options.rank);
  request.set_from_step(options.from);
  request.set_to_step(options.to);
  request.set_max_points(options.points.value_or(options.csv || global.json ? 0 : kTablePoints));
  // Only a single cell is cut out by the server.
  if (metric->axes_size() > 0 && options.layer.has_value() && (metric->axes_size() == 1 || options.head.has_value())) {
    request.set_layer(*options.layer);
    if (options.head.has_value()) request.set_head(*options.head);
    selection.single = true;
  }
  std::unique_ptr<Output> output;
  if (global.json) {
    output = std::make_unique<JsonOutput>();
  } else if (options.csv) {
    output = std::make_unique<CsvOutput>(selection);
  } else {
    output = std::make_unique<TableOutput>(*metric, selection);
  }
  grpc::ClientContext context;
  (*client)->Prepare(&context, kSeriesSeconds);
  const auto reader = (*client)->query().ReadSeries(&context, request);
  v1::SeriesChunk chunk;
  while (reader->Read(&chunk)) {
    for (const v1::SeriesPoint& point : chunk.points()) {
      const uint32_t layers = server::ShapeOf(point.block()).layers;
      if (!selection.single && options.layer.has_value() && *options.layer >= layers) {
        context.TryCancel();
        reader->Finish();
        return Fail(absl::NotFoundError(
            absl::StrCat("there is no layer ", *options.layer, "; there are ", layers, ", from 0")));
      }
      output->Add(point);
    }
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) return Fail(status);
  output->Finish();
  return kOk;
}

}  // namespace

void AddSeriesCommand(CLI::App* app, Action* action) {
  static SeriesOptions options;
  CLI::App* series = app->add_subcommand("series", "One metric over the steps: table, --csv or --json");
  series->add_option("RUN", options.run, "Name or unique beginning; not needed when there is one run");
  series->add_option("--metric", options.metric, "Metric (default: loss); a wrong name lists them");
  series->add_option("--rank", options.rank, "Rank (default: 0)")->check(WholeNumber());
  CLI::Option* layer = series->add_option("--layer", options.layer, "Only this layer")->check(WholeNumber());
  series->add_option("--head", options.head, "Only this head; needs --layer")->needs(layer)->check(WholeNumber());
  series->add_option("--from", options.from, "First step")->check(WholeNumber());
  series->add_option("--to", options.to, "Last step")->check(WholeNumber());
  series
      ->add_option("--points", options.points,
                   "Thin to at most so many rows; 0: all (default: 24 in a table, else all)")
      ->check(WholeNumber());
  series->add_flag("--csv", options.csv, "Comma-separated, one line a cell, exact");
  series->callback([action] { *action = [](const GlobalOptions& global) { return Series(global, options); }; });
}

}  // namespace trimtab::cli
