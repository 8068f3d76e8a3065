#!/bin/bash
# Installs what set-up and tests need beside Python itself, by apt where it may; where it may not, says what is missing.
set -u
missing=()
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
command -v openssl >/dev/null || missing+=(openssl)
optional=() # tests that need these are skipped, and say so
command -v prometheus-alertmanager >/dev/null || command -v alertmanager >/dev/null || optional+=(prometheus-alertmanager)
[ ${#missing[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq; then
  install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
  for package in "${optional[@]}"; do
    echo "==> installing $package with apt (optional)"
    install "$package" || echo "==> $package could not be installed; its tests are skipped" >&2
  done
  [ ${#missing[@]} -eq 0 ] && exit 0
  echo "==> installing ${missing[*]} with apt"
  install "${missing[@]}" && exit 0
fi
[ ${#missing[@]} -eq 0 ] && exit 0
echo "==> ${missing[*]} could not be installed (no root, or no apt): install it, then run make again" >&2
