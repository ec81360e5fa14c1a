#!/usr/bin/env bash
# Makes (or reuses) a Python virtual environment with PyTorch.
#
#   deploy/python-env.sh FOLDER [PACKAGE…]
#
# Environment: TRIMTAB_TORCH (default torch==2.13.0) names the PyTorch to install; PIP_* are pip's own. A folder that
# already holds what is asked for is left as it is. Prints nothing when there is nothing to do.
set -euo pipefail

if (($# < 1)); then
  echo "usage: deploy/python-env.sh FOLDER [PACKAGE…]" >&2
  exit 2
fi
folder=$1
shift
torch=${TRIMTAB_TORCH:-torch==2.13.0}
wanted="$torch numpy $*"
if [[ -f $folder/.trimtab-installed && $(cat "$folder/.trimtab-installed") == "$wanted" ]]; then
  exit 0
fi
python=${TRIMTAB_BASE_PYTHON:-python3}
if [[ ! -x $folder/bin/python ]]; then
  echo "Making a Python virtual environment in $folder"
  if ! "$python" -m venv "$folder"; then
    echo "python-env.sh: '$python -m venv' failed; install python3-venv or set TRIMTAB_BASE_PYTHON" >&2
    exit 1
  fi
fi
log=$folder/pip.log
echo "Installing into it: $wanted (log: $log)"
# torch first: the others must not bring another build of it.
for packages in "$torch numpy" "$*"; do
  [[ -z $packages ]] && continue
  # shellcheck disable=SC2086
  if ! "$folder/bin/python" -m pip install --disable-pip-version-check $packages >>"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "python-env.sh: pip could not install $packages; the last lines are above" >&2
    exit 1
  fi
done
echo "$wanted" >"$folder/.trimtab-installed"
