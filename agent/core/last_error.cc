#include "agent/core/last_error.h"

#include <cstdarg>
#include <cstdio>

namespace trimtab::agent {
namespace {
thread_local char last_error[kMaxErrorBytes] = "";
}  // namespace

trimtab_status Fail(trimtab_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace trimtab::agent

const char* trimtab_last_error(void) { return trimtab::agent::last_error; }
