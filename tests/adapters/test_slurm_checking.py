"""What is said of a script before it is submitted, by the real bash and the real shellcheck."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sentinel.adapters.slurm.preparing import check_script
from sentinel.vocabulary.errors import SlurmRefused

WELL = "#!/bin/bash\necho ok\n"
ILL = "#!/bin/bash\nread -r x\nif [ -z $x]; then echo none; fi\n"  # bash -n takes it, and it fails when it runs


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_script_that_bash_does_not_understand_is_refused(tmp_path: Path) -> None:
    broken = written(tmp_path / "0.sh", "#!/bin/bash\nif true; then\n")
    with pytest.raises(SlurmRefused, match="bash does not understand the script"):
        check_script(broken, tmp_path / "none")


def test_a_script_in_another_language_is_not_bashs_to_judge(tmp_path: Path) -> None:
    check_script(written(tmp_path / "0.sh", "#!/usr/bin/env python3\nif True: pass\n"), tmp_path / "none")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_an_error_that_a_change_brings_in_is_refused_and_one_that_was_there_is_not(tmp_path: Path) -> None:
    original, ill = written(tmp_path / "0.original.sh", WELL), written(tmp_path / "0.sh", ILL)
    with pytest.raises(SlurmRefused, match="shellcheck finds what the run's own script has not: SC"):
        check_script(ill, original)
    check_script(ill, written(original, ILL))
    check_script(ill, tmp_path / "none")  # nothing was changed
    check_script(original, ill)
