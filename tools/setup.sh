#!/bin/bash
# Makes the environment for the demo and the tests: $VENV, from the package registries. The full log is .make/setup.log.
set -u
cd "$(dirname "$0")/.."
venv=${VENV:-.venv} log=.make/setup.log
mkdir -p .make && : > $log
step() {
  local what=$1
  shift
  echo "==> $what"
  "$@" >> $log 2>&1 && return
  echo "==> failed: $*; the last lines of $log:" >&2
  tail -n 20 $log >&2
  exit 1
}
"${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "==> Python 3.11 or newer is needed" >&2; exit 1; }
tools/system_packages.sh
[ -x $venv/bin/python ] || step "making $venv" "${PYTHON:-python3}" -m venv $venv
# torch first and alone: whatever else asks for it would bring its CUDA build.
step "installing torch, 200 MB (log: $log)" $venv/bin/pip install -c constraints.txt torch
step "installing DeepSpeed, sentinel and the tools of the tests: two to four minutes" $venv/bin/pip install -c constraints.txt -e '.[dev]'
echo "==> set up"
