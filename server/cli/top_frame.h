// One picture of `trimtab top`, as text.
#ifndef TRIMTAB_SERVER_CLI_TOP_FRAME_H_
#define TRIMTAB_SERVER_CLI_TOP_FRAME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/cli/terminal.h"
#include "trimtab/v1/query.pb.h"

namespace trimtab::cli {

struct TopData {
  v1::RunState state;
  std::vector<float> losses;      // oldest first, any number
  std::vector<v1::Event> events;  // oldest first
  size_t runs = 1, index = 0;     // of the shown run among all
  std::string problem;            // why the data is old; empty: it is not
};

// Bars of eight heights, `width` columns; non-finite values as '!'. Empty for no values.
std::string Sparkline(const std::vector<float>& values, size_t width);

// At most size.rows lines of at most size.columns columns, each ending in '\n'. Rows 0: no limit (not a terminal).
std::string TopFrame(const TopData& data, TerminalSize size, int64_t now_unix_nanos);

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_TOP_FRAME_H_
