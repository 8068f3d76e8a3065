"""What the documentation says exists: commands and their options, configuration keys, refusals."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.paging.settings import Alertmanager, Command, Mail, PagingSettings, Webhook
from sentinel.adapters.wandb import WandbRun
from sentinel.cli.commands import COMMANDS, loaded
from sentinel.config import (
    BisectSettings,
    Commands,
    Config,
    LauncherSettings,
    Run,
    SourceSettings,
    WatchSettings,
    load_config,
)
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy, Tuning
from sentinel.reports.refusals import sections, what_to_do
from sentinel.reports.rungs import evidence, known_failures
from sentinel.vocabulary.metrics import DAEMON_METRICS, all_metrics, every_name
from sentinel.vocabulary.parking import ResumeRequest
from tools.pages import PAGES as MADE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLES = {
    "run": Run,
    "launcher": LauncherSettings,
    "source": SourceSettings,
    "watch": WatchSettings,
    "judge": Thresholds,
    "policy": Policy,
    "tune": Tuning,
    "bisect": BisectSettings,
    "commands": Commands,
    "[policy.ladder]": Rung,
    "paging": PagingSettings,
    "metrics": Metrics,
    "wandb": WandbRun,
    "[paging.webhook]": Webhook,
    "[paging.mail]": Mail,
    "[paging.command]": Command,
    "[paging.alertmanager]": Alertmanager,
}
REFUSERS = (
    "error_class",
    "stop_turn",
    "Liveness",
    "Fault",
    "PermanentError",
    "NotOurCheckpoints",
    "QuarantineError",
    "CheckpointError",
    "LockHeld",
    "SlurmRefused",
    "SlurmNotReady",
    "NotOurJob",
    "FilesystemRefused",
    "FilesystemUnavailable",
    "PagerError",
    "NotUnderstood",
    "ScrapeError",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    commands = {command.name: loaded(command.name) for command in COMMANDS}
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


def test_every_key_of_a_rung_has_its_hypothesis_in_the_table_of_rungs(tmp_path: Path) -> None:
    assert sorted(key for row in evidence() for key in row.keys) == sorted(
        {f.name for f in fields(Rung)} - {"name", "hypothesis", "restart"}
    )
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "LADDER.md").read_text(), re.DOTALL)
    (tmp_path / "a.toml").write_text(f'[run]\nname = "a"\ncheckpoints = "c"\n{example}')
    ladder = load_config(tmp_path / "a.toml").policy.ladder
    assert len(ladder) == 6
    (skip,) = known_failures(ladder[1])
    assert skip.startswith("known failures of skip_samples: LR, model or numerics")


def test_every_exported_metric_is_on_its_page_as_it_is() -> None:
    page, _, _ = (ROOT / "docs" / "METRICS.md").read_text().partition("## Metrics of `sentinel watch`")
    rows = re.findall(r"^\| `(sentinel_[a-z0-9_]+)` \| (\w+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(metric.name, metric.kind, metric.help) for metric in all_metrics()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_metrics_that_a_page_names_are_exported(page: Path) -> None:
    named = set(re.findall(r"(?<![\w:.$/-])sentinel_[a-z0-9_]+(?![\w:])", page.read_text()))
    assert {name for name in named if name not in every_name()} == set()


def test_every_metric_of_the_daemon_is_on_its_page_as_it_is() -> None:
    _, _, page = (ROOT / "docs" / "METRICS.md").read_text().partition("## Metrics of `sentinel watch`")
    rows = re.findall(r"^\| `(sentinel_[a-z0-9_]+)` \| (\w+) \| ([a-z, ]+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(m.name, m.kind, ", ".join(m.labels), m.help) for m in DAEMON_METRICS]


def test_every_recorded_series_is_on_its_page_as_it_is() -> None:
    page = (ROOT / "docs" / "METRICS.md").read_text()
    groups = yaml.safe_load((ROOT / "dashboards" / "rules" / "recording.yaml").read_text())["groups"]
    rows = re.findall(r"^\| `([a-z0-9_]+:[a-z0-9_:]+)` \| `(.+)` \|$", page, re.MULTILINE)
    assert rows == [(rule["record"], " ".join(rule["expr"].split())) for group in groups for rule in group["rules"]]


def test_every_setting_of_the_exporter_is_documented() -> None:
    page = (ROOT / "docs" / "PYTHON.md").read_text()
    tree = ast.parse((ROOT / "trainer_hooks" / "export" / "exporter.py").read_text())
    (settings,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ExporterSettings"]
    keys = {n.target.id for n in settings.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert {key for key in keys if f"| `{key}` |" not in page} == set()


def test_every_field_of_what_reload_gets_is_documented() -> None:
    page = (ROOT / "docs" / "PYTHON.md").read_text().partition("\n## ResumeRequest\n")[2].partition("\n## ")[0]
    assert {field.name for field in fields(ResumeRequest) if f"| `{field.name}` |" not in page} == set()


def test_every_file_that_contributing_names_exists() -> None:
    """A bare file name is one of the folder that was named before it in its line."""
    missing, folder = [], ROOT
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        for path in re.findall(r"`([\w./-]+(?:\.py|\.toml|\.md|/))`", line):
            named = ROOT / path
            folder = (named if path.endswith("/") else named.parent) if "/" in path else folder
            found = named.exists() or (folder / path).exists() or any(folder.rglob(path))
            missing += [path] if not found and "NAME" not in path else []
    assert missing == []


def test_the_index_of_benchmarks_has_every_program_and_names_pages_that_name_it() -> None:
    folder = ROOT / "benchmarks"
    index = (folder / "README.md").read_text()
    listed = dict(re.findall(r"^\| `python (?:-m )?benchmarks[/.]([\w./]+)[^`]*`(.*)", index, re.MULTILINE))
    campaigns = [path for path in (folder / "campaigns").glob("*.py") if "__main__" in path.read_text()]
    assert set(listed) == {p.name for p in folder.glob("*.py")} | {f"campaigns.{p.stem}" for p in campaigns} | {"gpu"}
    for name, rest in listed.items():
        pages = re.findall(r"\.\./(docs/\w+\.md)", rest)
        assert [page for page in pages if name not in (ROOT / page).read_text()] == [], name
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", index) if not (folder / link).exists()] == []


@pytest.mark.parametrize("name", MADE)
def test_a_page_that_is_made_from_the_code_is_what_the_program_writes(name: str) -> None:
    """`make pages` writes them."""
    assert (ROOT / "docs" / name).read_text() == MADE[name]()


def test_the_configuration_reference_has_every_key_with_its_meaning() -> None:
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    assert [name for name, kind, _, meaning in rows if not kind or not meaning.strip()] == []
    assert len(rows) == sum(len(fields(table)) for table in TABLES.values())


def test_the_reference_of_commands_has_every_command_and_option() -> None:
    sections = dict(
        re.findall(r"^## sentinel (\S+)\n(.*?)(?=^## |\Z)", MADE["COMMANDS.md"](), re.MULTILINE | re.DOTALL)
    )
    commands = {command.name: loaded(command.name) for command in COMMANDS}
    assert set(sections) == set(commands)
    for name, command in commands.items():
        assert {o for p in command.params for o in p.opts if o.startswith("--") and f"`{o}`" not in sections[name]} <= {
            "--help"
        }


def test_every_refusal_of_the_code_is_in_the_table_of_refusals() -> None:
    """docs/RUNBOOK.md is made from `sentinel/reports/refusals.toml`."""
    listed = [says for section in sections() for refusal in section.refusal for says in refusal.says]
    spoken = {text for path in (ROOT / "sentinel").rglob("*.py") for text in _refusals(ast.parse(path.read_text()))}
    assert len(spoken) > 20
    assert sorted(spoken) == sorted(listed)


def test_a_refusal_finds_its_own_advice() -> None:
    rows = [(says, refusal) for section in sections() for refusal in section.refusal for says in refusal.says]
    found = {says: what_to_do(says.replace("…", "a: b")) for says, _ in rows}
    first = {says: " ".join(refusal.do.split()).partition("[")[0][:20] for says, refusal in rows}
    assert {s for s, advice in found.items() if advice is not None and not advice.startswith(first[s])} == set()
    assert sum(advice is not None for advice in found.values()) > 0.9 * len(found)
    assert what_to_do("pip is not installed") is None


def test_the_command_line_says_what_to_do_about_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "a.toml").write_text('[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n')
    (tmp_path / "state").mkdir()
    command = [sys.executable, "-m", "sentinel", "rollback", "--run", "a.toml", "--to", "global_step3", "--dry-run"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (1, "refused: there is no checkpoint 'global_step3': the run has none\n"), (
        ran
    )
    assert ran.stderr == "what to do: The tag is the folder's name, for example `global_step3000`.\n"


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
