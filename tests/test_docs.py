"""What the documentation says exists: commands and their options, configuration keys, refusals."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main

from sentinel.adapters.paging.settings import Alertmanager, Command, Mail, Paging, Webhook
from sentinel.cli.commands import app
from sentinel.config import Config, Launcher, Run, Source, Watch, load_config
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.policy import Policy
from sentinel.plan.rung import Rung

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLES = {
    "run": Run,
    "launcher": Launcher,
    "source": Source,
    "watch": Watch,
    "judge": Thresholds,
    "policy": Policy,
    "[policy.ladder]": Rung,
    "paging": Paging,
    "[paging.webhook]": Webhook,
    "[paging.mail]": Mail,
    "[paging.command]": Command,
    "[paging.alertmanager]": Alertmanager,
}
REFUSERS = (
    "_stop",
    "PermanentError",
    "QuarantineError",
    "CheckpointError",
    "LockHeld",
    "SlurmRefused",
    "SlurmNotReady",
    "NotOurJob",
    "FilesystemRefused",
    "FilesystemUnavailable",
    "PagerError",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - typer's group, which mypy sees as a command
    for line in re.findall(r"(?:^|`|\$ )(sentinel [a-z][^`\n#]*)", page.read_text(), re.MULTILINE):
        _, verb, *words = line.split()
        assert verb in commands, line
        options = {name for parameter in commands[verb].params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in (w.partition("=")[0].strip("[](),.") for w in words):
            if word.startswith("-"):
                assert word in options, line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_configuration_keys_on_a_page_exist(page: Path) -> None:
    assert {table for table in TABLES if not table.startswith("[")} == {f.name for f in fields(Config)}
    for table, key in re.findall(r"`\[(\[?[a-z.]+\]?)\] ([a-z0-9_]+)`", page.read_text()):
        assert key in {f.name for f in fields(TABLES[table])}, f"[{table}] {key}"


def test_every_key_of_a_rung_has_its_place_on_the_ladders_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "LADDER.md").read_text()
    told = set(re.findall(r"`\[\[policy\.ladder\]\] ([a-z0-9_]+)`", page))
    assert told == {f.name for f in fields(Rung)} - {"name", "hypothesis"}
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "a.toml").write_text(f'[run]\nname = "a"\ncheckpoints = "c"\n{example}')
    assert len(load_config(tmp_path / "a.toml").policy.ladder) == 4


def test_every_refusal_has_its_place_in_the_runbook() -> None:
    headings = set(re.findall(r"^### (.+)$", (ROOT / "docs" / "RUNBOOK.md").read_text(), re.MULTILINE))
    spoken = {text for path in (ROOT / "sentinel").rglob("*.py") for text in _refusals(ast.parse(path.read_text()))}
    assert len(spoken) > 20
    assert spoken == headings


def _refusals(tree: ast.Module) -> set[str]:
    """What the module refuses with: `refusal=…`, and the errors that ask for a person; what varies is `…`."""
    constants = {
        target.id: _text(node.value, {})
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        said = [keyword.value for keyword in node.keywords if keyword.arg == "refusal"]
        said += node.args if name in REFUSERS else []
        arms = [
            arm for value in said for arm in ([value.body, value.orelse] if isinstance(value, ast.IfExp) else [value])
        ]
        found |= {text for arm in arms if (text := _text(arm, constants)) and text.strip("…")}
    return found


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return constants.get(node.id, "") if isinstance(node, ast.Name) else ""
