"""The site builds strictly, asks nothing of another server, and its links hold in the repository as well."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.chart import ROOT, program

CHART = ROOT / "charts" / "sentinel" / "README.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", CHART, *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Not --quiet: that hides the warnings from --strict as well."""
    command = [program("mkdocs"), "build", "--strict", "--site-dir", str(site)]
    env = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, env=env)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_built_and_asks_nothing_of_another_server(site: Path) -> None:
    built = list(site.rglob("index.html"))
    assert {page.parent.name for page in built} >= {p.stem for p in (ROOT / "docs").glob("*.md")} - {"index"}
    for page in built:
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(https?:[^\"'>\s]+)", page.read_text())
        loaded += re.findall(r"<link(?=[^>]*stylesheet)[^>]*\shref=[\"']?(https?:[^\"'>\s]+)", page.read_text())
        assert loaded == [], page


def test_files_outside_the_docs_come_along(site: Path) -> None:
    mine = ROOT / "examples" / "deepspeed_three_lines.py"
    assert (site / "repository" / "examples" / mine.name).read_bytes() == mine.read_bytes()
    assert "../repository/examples/deepspeed_three_lines.py" in (site / "ATTACH" / "index.html").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[x](NOWHERE.md)", "NOWHERE.md"),
        ("[x](JUDGE.md#no-such-heading)", "no-such-heading"),
        ("[x](../examples/nowhere.py)", "examples/nowhere.py"),
    ],
)
def test_a_broken_link_breaks_the_build(tmp_path: Path, line: str, says: str) -> None:
    for name in ("docs", "tools", "examples", "benchmarks/results", "deploy", "charts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "UNDO.md").open("a") as page:
        page.write(f"\n{line}\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert says in built.stdout + built.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere_in_the_repository(page: Path) -> None:
    for path, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", _prose(page))):
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), path
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{path}#{anchor}"


def _prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """A page's headings as GitHub names them: lower case, spaces as hyphens, without other signs."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
