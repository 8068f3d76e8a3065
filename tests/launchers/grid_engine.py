"""A real Grid Engine of one node on loopback: Debian's packages, unpacked into a folder and not installed. Its programs
expect themselves below /usr: an overlay that only the cluster's own mount namespace has puts them there."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launchers.loopback import Loopback, loopback
from tests.slurm.cluster import until

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".grid-engine"
PACKAGES = [f"gridengine-{part}" for part in ("common", "client", "exec", "master")]
PACKAGES += ["libjemalloc2", "libmunge2", "libhwloc15", "libtirpc3", "libdb5.3"]
HOST = "gridtest"  # in a namespace of its own, where 127.0.0.1 has no other name

_NAMESPACE = """hostname {host}
mount --make-rprivate /
mount -t overlay overlay -o lowerdir={usr}:/usr /usr
mount --bind {hosts} /etc/hosts"""

_BOOTSTRAP = """admin_user root
default_domain none
ignore_fqdn false
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params {base}/spool/db
binary_path /usr/sbin
qmaster_spool_dir {base}/spool/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

# min_uid and min_gid: else the jobs of root, as whom the tests run, are refused.
_UP = r"""set -e
base=$1 share=/usr/share/gridengine programs=/usr/lib/gridengine
sed "s,/var/spool/gridengine/execd,$base/spool/execd,; s/^min_\(.\)id.*/min_\1id 0/" \
  $share/default-configuration > $base/configuration
$programs/spoolinit berkeleydb libspoolb $base/spool/db init
$programs/spooldefaults configuration $base/configuration
$programs/spooldefaults complexes $share/util/resources/centry
$programs/spooldefaults usersets $share/util/resources/usersets
$programs/spooldefaults managers root
sge_qmaster
for try in $(seq 100); do qconf -sh > /dev/null 2>&1 && break; sleep 0.2; done
qconf -as $(hostname)
qconf -ssconf | sed 's/^\(schedule_interval\).*/\1 0:0:1/; s/^\(flush_[a-z]*_sec\).*/\1 1/' > $base/scheduler
qconf -Msconf $base/scheduler
sge_execd
qconf -sq | sed "s/^qname.*/qname all.q/; s/^hostlist.*/hostlist $(hostname)/; s/^slots.*/slots 4/
s/^pe_list.*/pe_list NONE/; s,^shell .*,shell /bin/bash,; s/^load_thresholds.*/load_thresholds NONE/" > $base/queue
qconf -Aq $base/queue
"""


def unpacked() -> Path:
    """The packages' /usr; fetched by the first that asks. Skips where apt or its registry is not there."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        pytest.skip("Grid Engine's packages are Debian's, and this machine has no apt")
    with (ROOT / ".grid-engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (UNPACKED / "made").exists():
            debs = UNPACKED / "debs"
            debs.mkdir(parents=True, exist_ok=True)
            _quietly(apt, "update", "-qq", cwd=debs)
            if (problem := _quietly(apt, "download", "-qq", *PACKAGES, cwd=debs)) is not None:
                pytest.skip(f"Debian's packages of Grid Engine can't be had: {problem}")
            for package in debs.glob("*.deb"):
                assert _quietly(dpkg, "-x", str(package), str(UNPACKED / "root"), cwd=debs) is None
            if (lib := UNPACKED / "root" / "lib").exists():  # as a merged /usr has it
                shutil.copytree(lib, UNPACKED / "root" / "usr" / "lib", symlinks=True, dirs_exist_ok=True)
            (UNPACKED / "made").touch()
    return UNPACKED / "root" / "usr"


def _quietly(*line: str, cwd: Path) -> str | None:
    """The last words of a program that failed; None of one that did not."""
    ran = subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    return ran.stderr[-300:] if ran.returncode else None


class GridEngine:
    """What the tests ask of it; `environment` is what its programs need in theirs."""

    def __init__(self, inside: Loopback, base: Path) -> None:
        self.inside = inside
        self.base = base
        ports = {"SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        self.environment = {"SGE_ROOT": str(base / "root"), "SGE_CELL": "default", **ports}

    def run(self, *words: str, cwd: Path | None = None, expect: int | None = 0, **more: str) -> str:
        """One of its programs, inside; returns what it prints."""
        ran = subprocess.run(
            [*self.inside.prefix, "env", f"--chdir={cwd or self.base}", *words],
            env={**os.environ, **self.environment, **more},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert expect is None or ran.returncode == expect, f"{words}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def up(self) -> None:
        common = self.base / "root" / "default" / "common"
        for folder in (common, *(self.base / "spool" / name for name in ("qmaster/job_scripts", "db", "execd"))):
            folder.mkdir(parents=True)
        (self.base / "root" / "util").symlink_to("/usr/share/gridengine/util")
        (common / "bootstrap").write_text(_BOOTSTRAP.format(base=self.base))
        (common / "act_qmaster").write_text(f"{HOST}\n")
        self.run("/bin/sh", "-c", _UP, "sh", str(self.base))
        until(lambda: f"all.q@{HOST}" in self.run("qstat", "-f"))


@contextmanager
def grid_engine(folder: Path) -> Iterator[GridEngine]:
    usr = unpacked()
    folder.chmod(0o755)
    (folder / "hosts").write_text(f"127.0.0.1 {HOST} localhost\n")
    more = _NAMESPACE.format(host=HOST, usr=usr, hosts=folder / "hosts")
    with loopback(folder, more, ("net", "mount", "uts")) as inside:
        cluster = GridEngine(inside, folder)
        cluster.up()
        yield cluster
