#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#
#   tests/run.sh [--fast] [--sanitize] [--no-install] [--list] [STEP…]
#
#   --fast        unit tests only (C++ and Python), about a minute once built
#   --sanitize    also the C++ tests under ASan+UBSan and TSan (each is a build of its own)
#   --no-install  fail instead of installing missing packages
#   --list        print the steps and end
#   STEP…         only these steps
#
# Steps: install build cpp python rules e2e page fault quickstart sanitize.
# Without --fast, all but `sanitize` run. Ends with one line "N passed, N failed" over the steps; exit 1 if one failed.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 PYTHONDONTWRITEBYTECODE=1
build=$root/build/dev
venv=$root/build/venv
jobs=$(nproc)

fast=(install build cpp python)
full=(install build cpp python rules e2e page fault quickstart)
steps=()
add_sanitize=0 install=1
for arg in "$@"; do
  case "$arg" in
    --fast) steps=("${fast[@]}") ;;
    --sanitize) add_sanitize=1 ;;
    --no-install) install=0 ;;
    --list) printf '%s\n' "${full[@]}" sanitize; exit 0 ;;
    -h|--help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "run.sh: unknown flag '$arg'; see --help" >&2; exit 2 ;;
    *)
      if ! printf '%s\n' "${full[@]}" sanitize | grep -qxF -- "$arg"; then
        echo "run.sh: unknown step '$arg'; --list prints the steps" >&2
        exit 2
      fi
      steps+=("$arg")
      ;;
  esac
done
((${#steps[@]})) || steps=("${full[@]}")
((add_sanitize)) && steps+=(sanitize)

step_install() {
  if ((install)); then
    deploy/install-deps.sh --test || return 1
  elif missing=$(deploy/install-deps.sh --test --print) && [[ -n $missing ]]; then
    echo "run.sh: missing Debian packages:" $missing >&2
    return 1
  fi
  deploy/python-env.sh "$venv" pytest transformers accelerate lightning selenium
}

step_build() {
  cmake --preset dev && cmake --build --preset dev -j "$jobs"
}

ctest_label() { ctest --preset dev -j "$jobs" -L "$1" --no-tests=error; }
pytest_in() { TRIMTAB_BUILD_DIR=$build "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"; }

step_cpp() { ctest_label unit; }
# The hook library is loaded into a process once: its own tests have one to themselves.
step_python() { pytest_in tests/unit --ignore tests/unit/agent/torch && pytest_in tests/unit/agent/torch; }
step_rules() { pytest_in tests/e2e/monitoring; }
step_e2e() { pytest_in tests/e2e --ignore tests/e2e/monitoring --ignore tests/e2e/page; }
step_page() { pytest_in tests/e2e/page; }
step_fault() { ctest_label fault && pytest_in tests/fault; }
step_quickstart() { pytest_in tests/quickstart; }
step_sanitize() {
  local preset
  for preset in asan-ubsan tsan; do
    cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs" &&
      ctest --preset "$preset" -j "$jobs" -L unit --no-tests=error || return 1
  done
}

passed=0 failed=()
for step in "${steps[@]}"; do
  printf '\n=== %s\n' "$step"
  begin=$SECONDS
  if "step_$step"; then
    passed=$((passed + 1))
    printf '=== %s passed in %d s\n' "$step" $((SECONDS - begin))
  else
    failed+=("$step")
    printf '=== %s FAILED after %d s\n' "$step" $((SECONDS - begin))
    [[ $step == install || $step == build ]] && break
  fi
done
((${#failed[@]})) && echo "failed steps: ${failed[*]}"
echo "$passed passed, ${#failed[@]} failed"
((${#failed[@]} == 0))
