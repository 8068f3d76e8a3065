#!/bin/bash
# Installs what set-up and tests need beside Python itself, by apt where it may; where it may not, says what is missing.
set -u
install() {
  [ $# -eq 0 ] && return 0
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  echo "==> installing $* with apt"  # RUNLEVEL=1 asks for no service of theirs to be started
  apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
needed=() optional=()
python3 -c 'import ensurepip' 2>/dev/null || needed+=(python3-venv)
command -v openssl >/dev/null || needed+=(openssl)
command -v prometheus-alertmanager >/dev/null || command -v alertmanager >/dev/null || optional+=(prometheus-alertmanager)
command -v promtool >/dev/null && command -v prometheus >/dev/null || optional+=(prometheus)
command -v systemd-analyze >/dev/null || optional+=(systemd)
command -v shellcheck >/dev/null || optional+=(shellcheck)
command -v chromium >/dev/null || optional+=(chromium)
command -v strace >/dev/null || optional+=(strace)
for program in slurmctld slurmd munged sbatch srun; do
  command -v $program >/dev/null || [ -x /usr/sbin/$program ] || { optional+=(slurmctld slurmd slurm-client munge); break; }
done
install "${needed[@]}" ||
  echo "==> ${needed[*]} could not be installed (no root, or no apt): install it, then run make again" >&2
install "${optional[@]}" ||
  echo "==> ${optional[*]} could not be installed (no root, or no apt): the tests that need it leave themselves out" >&2
exit 0
