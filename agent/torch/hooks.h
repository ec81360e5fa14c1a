// The boxed kernels that stand in front of torch's own attention kernels.
#ifndef TRIMTAB_AGENT_TORCH_HOOKS_H_
#define TRIMTAB_AGENT_TORCH_HOOKS_H_

#include <cstdint>
#include <string>

namespace trimtab::agent {

// Registers a kernel for every row of the table whose operator exists here. Rows that cannot be understood are left
// alone and named in the coverage errors. False when not one could be hooked. Not thread-safe against itself.
bool InstallHooks(std::string* error);
// Unregisters: the original kernels are back. Safe when nothing is installed.
void RemoveHooks();

// Layer of the next attention calls on this thread; -1: by call order.
void EnterLayer(int64_t layer);

// Tests: the next hook that reaches `where` ("forward", "forward_after", "backward", "backward_after") throws.
// False for another word.
bool InjectFault(const std::string& where);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_HOOKS_H_
