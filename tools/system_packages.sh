#!/bin/bash
# Installs what the tests need beside Python: a compiler for DeepSpeed's one compiled op.
# Where apt may not be used, says what is missing and goes on.
set -u
missing=()
command -v g++ >/dev/null || missing+=(g++)
python3 -c 'import sysconfig, pathlib, sys; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' || missing+=(python3-dev)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "==> installing ${missing[*]} with apt"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null && exit 0
fi
echo "==> ${missing[*]} could not be installed (no root, or no apt): tests with more than one rank and the demo may fail" >&2
