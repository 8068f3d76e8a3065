"""How the packages lie: what imports what, what each room says of itself, and how large it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(p.parent for top in ("sentinel", "trainer_hooks") for p in (ROOT / top).rglob("__init__.py"))
ROOMS = sorted({path.parent for top in ("plan", "lab") for path in (ROOT / "sentinel" / top).rglob("*.py")})
MOST_LINES = 1500


@cache
def modules() -> dict[str, Path]:
    """Name -> file, of all modules and packages."""
    files = (path for package in PACKAGES for path in package.glob("*.py"))
    return {".".join(_named(path).relative_to(ROOT).parts): path for path in files}


def _named(path: Path) -> Path:
    return path.parent if path.name == "__init__.py" else path.with_suffix("")


def imported(name: str) -> Iterator[str]:
    """The modules of ours that this one imports anywhere in its file: at its top, in a function, for typing alone."""
    for node in ast.walk(ast.parse(modules()[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module in modules():
            below = (f"{node.module}.{one.name}" for one in node.names)
            yield from (one if one in modules() else node.module for one in below)


def cycle_from(name: str, imports: dict[str, set[str]]) -> list[str] | None:
    """The shortest way from a module back to itself; None where there is none."""
    ways = [[name]]
    for way in ways:
        for other in sorted(imports[way[-1]]):
            if other == name:
                return [*way, name]
            if not any(known[-1] == other for known in ways):
                ways.append([*way, other])
    return None


def test_no_module_imports_itself_by_way_of_others() -> None:
    imports = {name: set(imported(name)) - {name} for name in modules()}
    assert len(imports) > 400
    found = (cycle_from(name, imports) for name in imports)
    assert {frozenset(way): " -> ".join(way) for way in found if way is not None} == {}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_package_says_what_comes_in_and_what_goes_out(package: Path) -> None:
    told = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    what, _, rest = told.partition("\n\nIn: ")
    assert what
    assert " Out: " in rest.replace("\n", " ")


@pytest.mark.parametrize("room", ROOMS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_room_is_large(room: Path) -> None:
    assert sum(len(path.read_text().splitlines()) for path in room.glob("*.py")) <= MOST_LINES


def test_a_public_class_has_a_name_of_its_own() -> None:
    trees = (ast.parse(path.read_text()) for name, path in modules().items() if name.startswith("sentinel"))
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert {name for name in classes if not name.startswith("_") and classes.count(name) > 1} == set()


def test_a_test_module_is_imported_by_no_other() -> None:
    """What several begin from is in tests/support/."""
    trees = (ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("*.py"))
    named = (node.module or "" for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    assert {name for name in named if name.startswith("tests.") and ".test_" in name} == set()


MOST_FIELDS = 12


def test_no_class_of_the_observation_has_more_fields_than_a_reader_keeps_in_mind() -> None:
    """`Facts`, its groups and what they are made of, as far as plan/ itself says what an observation is."""
    for name in ("sentinel.plan.facts", "sentinel.plan.observation"):
        classes = [n for n in ast.parse(modules()[name].read_text()).body if isinstance(n, ast.ClassDef)]
        fields = {one.name: sum(isinstance(node, ast.AnnAssign) for node in one.body) for one in classes}
        assert len(fields) >= 4
        assert {one: count for one, count in fields.items() if count > MOST_FIELDS} == {}
