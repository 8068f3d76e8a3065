"""What bash, and shellcheck where it is installed, say of a script before it is submitted. Neither runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from sentinel.vocabulary.errors import SlurmRefused

__all__ = ["check_script"]

_BASH = (b"#!/bin/bash", b"#!/usr/bin/bash", b"#!/usr/bin/env bash", b"#!/bin/sh", b"#!/usr/bin/sh")
_TIMEOUT_S = 20.0


def check_script(script: Path, original: Path) -> None:
    """SlurmRefused when bash does not understand the script, or shellcheck finds an error that the original has not.

    What the run has lived with so far is no reason to leave it stopped. `original` need not be there.
    """
    if not script.read_bytes().startswith(_BASH):
        return
    try:
        command = ["/bin/bash", "-n", str(script)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmRefused(f"bash could not check {script}: {error}") from error
    if checked.returncode:
        raise SlurmRefused(f"bash does not understand the script: {checked.stderr.strip()}")
    if original.exists() and (brought_in := _errors(script) - _errors(original)):
        raise SlurmRefused(f"shellcheck finds what the run's own script has not: {min(brought_in)}")


def _errors(script: Path) -> Counter[str]:
    """Shellcheck's errors, each as often as it is found; none where it is not installed, or does not answer."""
    program = shutil.which("shellcheck")
    if program is None:
        return Counter()
    try:
        command = [program, "--severity=error", "--format=json", str(script)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout
        return Counter(f"SC{finding['code']}: {finding['message']}" for finding in json.loads(told))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return Counter()
