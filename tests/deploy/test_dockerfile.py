"""The Dockerfile, as far as it can be judged without an engine."""

from __future__ import annotations

import re
import subprocess

from tests.deploy.chart import ROOT, program

TEXT = (ROOT / "deploy" / "Dockerfile").read_text()


def test_it_lints() -> None:
    command = [program("hadolint"), "--failure-threshold", "info", str(ROOT / "deploy" / "Dockerfile")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_it_copies_is_there_and_let_into_the_context() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE) for name in line.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_is_nobodys_root_and_has_no_trainer_in_it() -> None:
    last = TEXT.split("\nFROM ")[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"'\.\[(\w+)\]'", TEXT)[1] == "daemon"  # type: ignore[index]
