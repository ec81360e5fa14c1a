#!/usr/bin/env bash
# Installs the Debian packages that trimtab needs. Only what is missing; says what it will do before it does it.
#
#   deploy/install-deps.sh [--test] [--print]
#
#   (default)   what `deploy/quickstart.sh` needs: C++ libraries, compiler, CMake, Python with venv
#   --test      also what `tests/run.sh` needs: GoogleTest, Prometheus, Alertmanager, Chromium
#   --print     print the missing packages and do nothing
#
# Needs root, or a user with sudo. Works on Debian 12 and 13 and on Ubuntu releases with the same package names.
set -euo pipefail

build=(build-essential cmake ninja-build pkg-config git ca-certificates
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev librocksdb-dev
  prometheus-cpp-dev libcpp-httplib-dev nlohmann-json3-dev libyaml-cpp-dev libspdlog-dev libcli11-dev
  libssl-dev libc-ares-dev libre2-dev zlib1g-dev libsnappy-dev libzstd-dev liblz4-dev libbz2-dev liburing-dev
  libgflags-dev python3 python3-dev python3-venv)
test=(ccache libgtest-dev libgmock-dev libbenchmark-dev prometheus prometheus-alertmanager chromium chromium-driver
  curl jq iproute2)

want=("${build[@]}")
print=0
for arg in "$@"; do
  case "$arg" in
    --test) want+=("${test[@]}") ;;
    --print) print=1 ;;
    -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install-deps.sh: unknown argument '$arg'; see --help" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install-deps.sh: this is not a Debian system; install the equivalents of: ${want[*]}" >&2
  exit 1
fi

missing=()
for package in "${want[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if ((print)); then
  printf '%s\n' "${missing[@]}"
  exit 0
fi
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if (($(id -u) != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "install-deps.sh: needs root to install: ${missing[*]}" >&2
    echo "install-deps.sh: run it as root, or install sudo and add yourself to its group" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing Debian packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { "${as_root[@]}" apt-get -q update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
       apt-get -q install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "install-deps.sh: apt-get failed; the last lines are above" >&2
  exit 1
fi
