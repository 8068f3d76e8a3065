"""Texts of others, as a log or a journal may hold them, in everything that a person reads."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sentinel.adapters.paging.channels import _mail
from sentinel.adapters.paging.settings import Mail
from sentinel.cli.commands import app
from sentinel.cli.shared import table
from sentinel.daemon.logs import _Formatter
from sentinel.plan.alerts.page import page_for
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, encode
from sentinel.vocabulary.texts import for_people, markdown, neutral, neutral_in
from tests.support.log_lines import logged
from tests.support.there import there
from tests.triage.runs import diverged

ROOT = Path(__file__).parents[2]
CLEARS = "\x1b[2J\x1b[H\x1b]0;a title\x07\x9b31m\x85\u202eesrever\u2028\r\x00"
HTML = (
    "<script>alert(1)</script><img src=x onerror=a()><!channel> [a](javascript:a()) `code` @everyone a|b $\\no formula$"
)
HOSTILE = f"loss 6.4 < 7{CLEARS}{HTML}"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_ELEMENT = re.compile(r"<[A-Za-z!/?]")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which every text that others write is hostile."""
    folder = tmp_path_factory.mktemp("run")
    config = diverged(folder, reason=HOSTILE)
    log = folder / "state" / "incidents.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for event in events:
        for key in ("rung", "hypothesis", "outcome", "note", "by"):
            if isinstance(event.get(key), str):
                event[key] += CLEARS + HTML
        if "led_by" in event:
            event["led_by"] = [HOSTILE]
    log.write_text("".join(dump_json(event) + "\n" for event in events))
    (folder / "checkpoints" / f"global_step100{CLEARS[:-1]}<b>".replace("/", "")).mkdir()
    (folder / "checkpoints" / "latest").write_text(f"global_step100{CLEARS[:-1]}")
    return config


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["incidents"],
        ["incidents", "--shadow"],
        ["incident", "incident-1"],
        ["checkpoints"],
        ["rollback", "--to", f"global_step100{CLEARS[:-1]}", "--dry-run"],
        ["undo", HOSTILE, "--dry-run"],
        ["pin", HOSTILE],
        ["incident", HOSTILE],
        ["status", "--json"],
        ["incidents", "--json"],
    ],
    ids=lambda words: " ".join(words)[:20].encode("ascii", "replace").decode(),
)
def test_what_a_command_prints_holds_no_control_character(run: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, [words[0], *words[1:], "--run", str(run)])
    printed = done.stdout + done.stderr
    assert printed or done.exception is not None
    assert not _CONTROL.findall(printed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert not _CONTROL.findall(neutral(f"sentinel: {done.exception}"))  # as `main` prints it


def test_nothing_prints_but_by_the_one_function() -> None:
    for path in (ROOT / "sentinel").rglob("*.py"):
        wanted = 1 if path.name == "shared.py" and path.parent.name == "cli" else 0
        assert path.read_text().count("typer.echo(") == wanted, path


def test_the_chronicle_holds_neither_html_nor_links_of_others(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["chronicle", "--run", str(run), "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "chronicle.md").read_text(encoding="utf-8")
    assert "alert(1)" in page
    assert not _CONTROL.findall(page)
    assert not _ELEMENT.findall(page)
    assert not re.search(r"(?<!\\)\[a\]\(", page)


def test_the_triage_page_holds_others_texts_as_data_alone(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["triage", "--run", str(run), "--output", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert not _CONTROL.findall(re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))


def test_a_page_by_mail_and_chat_neither_steers_nor_links_nor_calls() -> None:
    event = {"event": "stopped", "incident": "incident-1", "time_unix_s": 1.0, "reason": HOSTILE}
    event |= {"last_lines": HOSTILE, "changes": [HOSTILE], "rung": HOSTILE}
    page = there(page_for(*logged(event), "tr8"))
    mail = _mail(page, Mail(host="h", sender="a@b.example", to=("c@d.example",)))
    written = mail.get_content()
    for text in (page.title, page.text, page.to_json()["text"], str(mail["Subject"]), written):
        assert not _CONTROL.findall(text)
        assert not _ELEMENT.findall(text)
        assert "@everyone" not in text
    assert not _CONTROL.findall(page.summary + str(page.details["last_lines"]))
    assert "loss 6.4 < 7" in page.text


def test_a_line_of_the_log_is_neutral() -> None:
    record = logging.LogRecord("a", logging.WARNING, "a.py", 1, "it said %s", (HOSTILE,), None)
    record.run = ""
    assert not _CONTROL.findall(_Formatter("%(levelname)s %(run)s%(message)s").format(record))


def test_a_cell_of_a_table_is_neither_control_nor_markup() -> None:
    from rich.console import Console

    out = io.StringIO()
    texts = [f"[bold]{place}[/bold] [/no/tag]" for place in ("title", "head", "cell", "caption")]
    title, head, cell, caption = texts
    Console(file=out, width=200).print(table(title + CLEARS, [head], [[cell + CLEARS]], caption=caption))
    assert all(text in out.getvalue() for text in texts)
    assert not _CONTROL.findall(out.getvalue())


def test_a_watch_goes_on_where_an_error_of_the_trainer_reads_as_markup(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "saves"\nstate_dir = "state"\n[watch]\npoll_interval_s = 0.1\n'
    )
    (tmp_path / "saves").mkdir()
    (tmp_path / "state" / "attempts").mkdir(parents=True)
    records = (
        RunStarted(run="a", attempt=1, time_unix_s=0.0),
        Sample(attempt=1, global_step=1, time_unix_s=1.0, loss=3.0),
        RunFinished(attempt=1, global_step=1, time_unix_s=2.0, reason="error: [/gloo/tcp/pair.cc:537] timed out"),
    )
    (tmp_path / "state" / "attempts" / "0001.jsonl").write_text("".join(f"{encode(record)}\n" for record in records))
    command = [sys.executable, "-m", "sentinel", "watch", "--observe", "--run", str(tmp_path / "run.toml")]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stderr is not None
        until_it_is_said = (line for line in watch.stderr if "pair.cc:537" in line)
        assert next(until_it_is_said, None) is not None
        with pytest.raises(subprocess.TimeoutExpired):  # several turns, each with its status line
            watch.wait(2.0)
        watch.terminate()
        assert "Traceback" not in watch.stderr.read()


@given(st.text())
def test_no_text_holds_a_control_character_but_newline_and_tab(text: str) -> None:
    for made in (neutral(text), for_people(text), markdown(text), neutral_in({text: [text]})):
        shown = made if isinstance(made, str) else "".join((*made, *(item[0] for item in made.values())))
        assert not _CONTROL.findall(shown)
        shown.encode("utf-8")
    assert not _ELEMENT.findall(for_people(text) + markdown(text))
    assert "\n" not in markdown(text)


@given(st.text(alphabet=st.characters(categories=["L", "N", "Zs"], include_characters="\n\t<>=.,%-")))
def test_a_text_that_steers_nothing_stays_as_it_is(text: str) -> None:
    assert neutral(text) == text
    assert neutral(neutral(text)) == neutral(text)
