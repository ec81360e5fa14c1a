// Where the other parts of trimtab lie: beside the binary, in an installed prefix, in the bundle or in a build tree.
#ifndef TRIMTAB_SERVER_CLI_PATHS_H_
#define TRIMTAB_SERVER_CLI_PATHS_H_

#include <filesystem>
#include <optional>
#include <string>

namespace trimtab::cli {

// The folder of this executable.
std::filesystem::path BinaryFolder();

// $TRIMTAB_PYTHON, else python3 of the active virtual environment, else "python3" (looked up in PATH).
std::string FindPython();

// The folder that holds the Python package `trimtab`: $TRIMTAB_PYTHONPATH, ../share/trimtab/python,
// ../lib/trimtab/python, or agent/python of the source tree above a build folder. nullopt: not found; an import may
// still work when the package is installed in that Python.
std::optional<std::filesystem::path> FindPythonPackage(const std::filesystem::path& binary_folder);

// The courier beside the binary or in the same build tree.
std::optional<std::filesystem::path> FindCourier(const std::filesystem::path& binary_folder);

// Puts the package before PYTHONPATH and sets TRIMTAB_COURIER unless it is set. Changes this process's environment.
void PreparePythonEnvironment();

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_PATHS_H_
