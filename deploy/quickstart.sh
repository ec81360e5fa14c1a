#!/usr/bin/env bash
# Shows trimtab save a real training run, beside the same run without protection, which explodes.
#
#   deploy/quickstart.sh [--seed N] [--steps N] [--json FILE] [--keep] [--no-install] [--work DIR] [--build DIR]
#
#   --seed N       seed of both runs (default 0)
#   --steps N      training steps (default 5000, about two minutes on two cores)
#   --json FILE    also write the result line to FILE
#   --keep         leave trimtabd running afterwards, with the page and the data
#   --no-install   fail instead of installing missing packages
#   --work DIR     where to build and keep the Python environment (default: build/quickstart in the repository)
#   --build DIR    CMake build folder; one that is configured already is taken as it is (default: WORK/release)
#
# It installs Debian packages (root, or a user with sudo; it names them first), builds trimtab, makes a Python virtual
# environment with PyTorch, starts trimtabd on loopback with a temporary data folder, and trains a small GPT on the
# sources of the Python standard library twice, side by side. To see in a minute what takes days in BF16, the attention
# of both runs is computed with a 2-bit mantissa by trimtab's fault injector (TRIMTAB_EMULATE_STORAGE=e5m2).
# The second call needs no rebuild. Ends with one JSON line.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seed=0 steps=5000 json="" keep=0 install=1 work="$root/build/quickstart" build=""

usage() { sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
die() { echo "quickstart: $1" >&2; exit "${2:-1}"; }
need() { (($# >= 2)) && [[ -n $2 ]] || die "$1 needs a value; see --help" 2; }
whole() { [[ $2 =~ ^[0-9]+$ ]] || die "$1 takes a whole number, not '$2'" 2; }
while (($#)); do
  case "$1" in
    --seed) need "$@"; whole "$1" "$2"; seed=$2; shift ;;
    --steps) need "$@"; whole "$1" "$2"; steps=$2; shift ;;
    --json) need "$@"; json=$2; shift ;;
    --work) need "$@"; work=$2; shift ;;
    --build) need "$@"; build=$2; shift ;;
    --keep) keep=1 ;;
    --no-install) install=0 ;;
    -h|--help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" 2 ;;
  esac
  shift
done
((steps >= 200)) || die "--steps must be at least 200" 2
if [[ -n $json ]]; then
  { : >"$json"; } 2>/dev/null || die "--json: cannot write to '$json'" 2
fi
mkdir -p "$work"
work=$(cd "$work" && pwd)
build=${build:-$work/release}

step() { printf '\n== %s\n' "$1"; }
# Of ninja's lines only how far it is: in place on a terminal, else once a tenth.
build_progress() {
  local line tenth=0
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    if [[ -t 1 ]]; then
      printf '\r%s ' "${BASH_REMATCH[0]}"
    elif ((10 * BASH_REMATCH[1] / BASH_REMATCH[2] > tenth)); then
      tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      echo "${BASH_REMATCH[0]}"
    fi
  done
  if [[ -t 1 ]]; then echo; fi
}

# --- install ----------------------------------------------------------------------------------------------------
missing=$("$root/deploy/install-deps.sh" --print)
if [[ -n $missing ]]; then
  ((install)) || die "these Debian packages are missing: $(echo $missing)"
  step "Installing $(wc -w <<<"$missing") Debian packages"
  "$root/deploy/install-deps.sh"
fi

step "Building trimtab (the first time takes a few minutes)"
log=$work/build.log
configure=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIMTAB_TESTS=OFF)
if [[ -f $build/CMakeCache.txt ]]; then configure=(); fi
if ! cmake -S "$root" -B "$build" "${configure[@]}" >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  die "cmake failed; the whole log is in $log"
fi
if ! cmake --build "$build" --target trimtabd trimtab-courier trimtab 2>&1 | tee -a "$log" |
    build_progress; then
  grep -A 20 -m 1 'FAILED' "$log" >&2 || tail -n 20 "$log" >&2
  die "the build failed; the whole log is in $log"
fi

step "Preparing Python"
"$root/deploy/python-env.sh" "$work/venv"
python=$work/venv/bin/python
find_binary() { find "$build" -name "$1" -type f -perm -u+x | head -n 1; }
trimtabd=$(find_binary trimtabd) trimtab=$(find_binary trimtab) courier=$(find_binary trimtab-courier)
export TRIMTAB_PYTHON=$python TRIMTAB_COURIER=$courier PYTHONUNBUFFERED=1
export PYTHONPATH=$root/agent/python${PYTHONPATH:+:$PYTHONPATH}
"$python" -m trimtab build

# --- serve ------------------------------------------------------------------------------------------------------
data=$(mktemp -d "${TMPDIR:-/tmp}/trimtab-quickstart.XXXXXX")
server_pid="" run_pids=()
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  for pid in "${run_pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  if ((keep)) && [[ $code == 0 ]]; then
    return
  fi
  if [[ -n $server_pid ]]; then
    kill "$server_pid" 2>/dev/null || true
    wait "$server_pid" 2>/dev/null || true
  fi
  if [[ $code == 0 ]]; then rm -rf "$data"; else echo "quickstart: logs are in $data" >&2; fi
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step "Starting trimtabd"
setsid "$trimtabd" --listen 127.0.0.1:0 --http 127.0.0.1:0 --data-dir "$data/store" --ready-file "$data/ready.json" \
  >"$data/trimtabd.log" 2>&1 &
server_pid=$!
for _ in $(seq 150); do
  [[ -s $data/ready.json ]] && break
  kill -0 "$server_pid" 2>/dev/null || { tail -n 5 "$data/trimtabd.log" >&2; die "trimtabd ended"; }
  sleep 0.1
done
[[ -s $data/ready.json ]] || die "trimtabd was not ready within 15 s; see $data/trimtabd.log"
server=$("$python" -c 'import json,sys; print(json.load(open(sys.argv[1]))["grpc"])' "$data/ready.json")
http=$("$python" -c 'import json,sys; print(json.load(open(sys.argv[1]))["http"])' "$data/ready.json")
export TRIMTAB_SERVER=$server
echo "live page:  http://$http/"
echo "terminal:   $trimtab --server $server top"

# --- train ------------------------------------------------------------------------------------------------------
step "Training twice, side by side: $steps steps, seed $seed, attention stored in e5m2 by the fault injector"
train() { # name, extra flags of `trimtab run`
  local name=$1
  shift
  "$trimtab" run --server "$server" --run "$name-seed$seed" --emulate-storage e5m2 "$@" -- \
    "$python" "$root/agent/python/examples/train_gpt.py" --seed "$seed" --steps "$steps" --log "$data/$name.csv" \
    >"$data/$name.log" 2>&1 &
  run_pids+=($!)
}
train unprotected
train protected --act
"$python" "$root/deploy/quickstart_report.py" watch --steps "$steps" \
  --pid "${run_pids[0]}" --pid "${run_pids[1]}" --log "$data/unprotected.csv" --log "$data/protected.csv"
for i in 0 1; do
  if ! wait "${run_pids[$i]}"; then
    tail -n 15 "$data/$( ((i == 0)) && echo unprotected || echo protected ).log" >&2
    die "a training run failed"
  fi
done
run_pids=()

step "What happened"
"$python" "$root/deploy/quickstart_report.py" report --trimtab "$trimtab" --server "$server" --seed "$seed" \
  --unprotected "$data/unprotected.csv" --protected "$data/protected.csv" --json "$data/result.json"
if ((keep)); then
  echo
  echo "trimtabd keeps running (pid $server_pid); stop it with: kill $server_pid"
  echo "live page:  http://$http/"
  echo "terminal:   $trimtab --server $server events unprotected-seed$seed"
  echo "data:       $data"
  disown "$server_pid" 2>/dev/null || true
else
  echo
  echo "to look around in the live page and the terminal afterwards: deploy/quickstart.sh --keep"
fi
[[ -n $json ]] && cp "$data/result.json" "$json"
cat "$data/result.json"
