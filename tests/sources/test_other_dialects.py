"""The same trainers in other words: newer and older versions, lines that ran together, tables of other programs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.sources.line_text import number
from sentinel.sources.log_file import read_log
from sentinel.sources.opening import open_sources
from tests.sources.reading import megatron, samples
from tests.sources.readings import NAN, column, told


def read(path: Path, *names: str) -> list[object]:
    (source,) = open_sources(path, {})
    rows = column(told(source), *names)
    assert source.unreadable == 0, source.first_unreadable
    return rows


def log(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_two_lines_of_megatron_that_ran_together_are_two_steps(tmp_path: Path) -> None:
    lines = [megatron(s, 3 + s / 7) + megatron(s + 1, 4 + s / 7) for s in range(1, 9, 2)]
    assert read(log(tmp_path, *lines), "step") == list(range(1, 9))
    (source,) = open_sources(tmp_path / "a.log", {})
    assert column(told(source), "loss")[:2] == [pytest.approx(3 + 1 / 7, abs=1e-5), pytest.approx(4 + 1 / 7, abs=1e-5)]


HF = "{{'loss': {0}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.{1:02d}}}"


@pytest.mark.parametrize(
    "lines",
    [
        ["".join(f"{i}%|##  | {i}/9 [00:01<00:10]" + HF.format(i / 8, i) for i in range(1, 9))],
        [HF.format(i / 8, i) + f" {i}%|#| {i}/9" + HF.format((i + 1) / 8, i + 1) for i in range(1, 9, 2)],
        [HF.format(f"np.float64({i / 8})", i).replace("1.5", "tensor(1.5, device='cuda:0')") for i in range(1, 9)],
        [HF.format(f"'{i / 8}'", i).replace("1.5", "'1.5'") for i in range(1, 9)],
        [HF.format(i / 8, i).replace(", ", ",\n ") for i in range(1, 9)],
    ],
)
def test_hugging_faces_dicts_are_read_however_they_were_printed(tmp_path: Path, lines: list[str]) -> None:
    rows = read(log(tmp_path, *lines), "step", "loss", "grad_norm", "lr")
    assert rows == [(i, i / 8, 1.5, 1e-05) for i in range(1, 9)]


def test_a_dict_that_is_cut_does_not_swallow_the_line_after_it(tmp_path: Path) -> None:
    path = log(tmp_path, HF.format(0.5, 1), "{'loss': 0.25,", HF.format(0.75, 3))
    assert [s.loss for s in samples(read_log(path, "huggingface"))] == [0.5, 0.75]


def test_olmo_core_says_which_steps_it_skipped(tmp_path: Path) -> None:
    block = "[step={0}/9,epoch=1]\n    optim/step skipped={1}.0\n    train/CE loss={0}.5"
    rows = read(log(tmp_path, *(block.format(i, int(i == 2)) for i in range(1, 5))), "step", "skipped")
    assert rows == [(1, None), (2, True), (3, None), (4, None)]


def test_a_json_array_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    rows = [{"step": i, "loss": i / 8} for i in range(50)]
    for indent in (None, 2):
        path.write_text(json.dumps(rows, indent=indent))
        assert read(path, "step", "loss") == [(i, i / 8) for i in range(50)]


def test_tables_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Wall time,Step,Value\n" + "".join(f"1700000000.5,{i},{i / 8}\n" for i in range(9)))
    assert read(path, "step", "loss") == [(i, i / 8) for i in range(9)]
    path.write_text("step;loss\n" + "".join(f"{i};{i / 8}\n".replace(".", ",") for i in range(9)))
    assert read(path, "step", "loss") == [(i, i / 8) for i in range(9)]
    spelled = ("nan(ind)", "-nan(ind)", "1.#QNAN", "-1.#IND", "1.#INF", "-1.#INF")
    path.write_text("step,loss\n" + "".join(f"{i},{text}\n" for i, text in enumerate(spelled)))
    assert read(path, "loss") == [NAN, NAN, NAN, NAN, math.inf, -math.inf]
    assert [str(number(text)) for text in spelled] == ["nan", "nan", "nan", "nan", "inf", "-inf"]


def test_a_file_of_which_nothing_can_be_read_is_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n" + "".join(f"{i},lots\n" for i in range(9)))
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "replay", str(path), "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "none of its 9 readings can be read; line 2: loss should be a number, not 'lots'" in done.stderr


def test_a_value_that_is_called_step_in_a_block_is_not_its_step(tmp_path: Path) -> None:
    head = "2024-08-06 09:59:26.181 INFO    [step=1/739328,epoch=0]"
    (tmp_path / "a.log").write_text(f"{head}\n    train/CrossEntropyLoss=2.5\nINFO [batch=3/7]\n")
    (source,) = open_sources(tmp_path / "a.log", {})
    assert [(steps.tolist(), losses.tolist()) for steps, losses in ((r.steps, r.values("loss")) for r in source)] == [
        ([1], [2.5])
    ]
