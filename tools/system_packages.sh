#!/bin/bash
# Installs what set-up and tests need beside Python itself, by apt where it may; where it may not, says what is missing.
set -u
missing=()
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "==> installing ${missing[*]} with apt"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null && exit 0
fi
echo "==> ${missing[*]} could not be installed (no root, or no apt): install it, then run make again" >&2
