"""Which configurations one daemon can watch together, and what is said of those that it can't."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.adapters.exposition.settings import Metrics
from sentinel.config import Config, load_config
from sentinel.config.run_files import Chosen, conflicts, read
from sentinel.vocabulary.errors import ConfigError


def configured(folder: Path, name: str, *lines: str, run: str | None = None, state: str | None = None) -> Config:
    text = [f'[run]\nname = "{run or name}"\ncheckpoints = "c"\nstate_dir = "{state or name}"', *lines]
    (folder / f"{name}.toml").write_text("\n".join(text) + "\n")
    return load_config(folder / f"{name}.toml")


def chosen(folder: Path, *runs: str, everything: bool = False) -> Chosen:
    return Chosen(runs=runs, everything=everything, config_dir=folder)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"run": "a"}, "have the same [run] name, a"),
        ({"state": "../here/a"}, "have the same [run] state_dir"),
        ({"lines": ["[metrics]", "textfile = 'a.prom'"]}, "have the same [metrics] textfile"),
        ({"lines": ["[metrics]", "port = 9", "serve = false"]}, "differ in [metrics] serve, port"),
    ],
)
def test_two_that_can_not_be_watched_together_are_both_named(tmp_path: Path, other: dict, says: str) -> None:  # type: ignore[type-arg]
    folder = tmp_path / "here"
    folder.mkdir()
    one = configured(folder, "a", "[metrics]", "textfile = 'a.prom'")
    lines = other.pop("lines", [])
    two = configured(folder, "b", *lines, **other)
    paths = folder / "a.toml", folder / "b.toml"
    (wrong,) = conflicts(dict(zip(paths, (one, two), strict=True))).items()
    assert wrong[0] == paths[1]
    assert all(str(path) in str(wrong[1]) for path in paths)
    assert says in str(wrong[1])


def test_those_that_agree_may_change_what_is_in_force_and_one_alone_may_not(tmp_path: Path) -> None:
    names = "abc"
    moved = {Path(n): configured(tmp_path, n, "[metrics]", "port = 9") for n in names}
    assert conflicts(moved, Metrics(port=8)) == {}
    moved[Path("b")] = configured(tmp_path, "b", "[metrics]", "port = 8")
    assert set(conflicts(moved, Metrics(port=8))) == {Path("a"), Path("c")}
    assert "the daemon and a differ in [metrics] port" in str(conflicts(moved, Metrics(port=8))[Path("a")])


def test_a_textfile_is_each_ones_own_and_no_difference(tmp_path: Path) -> None:
    each = {Path(n): configured(tmp_path, n, "[metrics]", f"textfile = '{n}.prom'") for n in "ab"}
    assert conflicts(each) == {}


def test_all_is_every_configuration_that_is_there_and_none_is_an_error_rather_than_an_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run is configured"):
        chosen(tmp_path, everything=True).paths()
    for name in "ba":
        configured(tmp_path, name)
    assert chosen(tmp_path, everything=True).paths() == (tmp_path / "a.toml", tmp_path / "b.toml")
    assert chosen(tmp_path, "b", str(tmp_path / "a.toml")).paths() == (tmp_path / "b.toml", tmp_path / "a.toml")
    with pytest.raises(ConfigError, match="say which --run"):
        chosen(tmp_path).paths()
    with pytest.raises(ConfigError, match=r"no run 'x'.*no run 'y'"):
        chosen(tmp_path, "x", "a", "y").paths()
    assert [chosen(tmp_path, *runs).alone for runs in ((), ("a",), ("a", "b"))] == [True, True, False]
    assert not chosen(tmp_path, everything=True).alone


def test_what_is_wrong_with_one_is_said_with_its_file_and_the_others_are_read(tmp_path: Path) -> None:
    configured(tmp_path, "a")
    (tmp_path / "b.toml").write_text("[run")
    configured(tmp_path, "c")

    def no_secret(config: Config) -> None:
        if config.run.name == "c":
            raise ConfigError("the token is not there")

    found = read(chosen(tmp_path, everything=True).paths(), no_secret)
    assert [path.stem for path in found.configs] == ["a"]
    assert str(tmp_path / "b.toml") in str(found.wrong[tmp_path / "b.toml"])
    assert str(found.wrong[tmp_path / "c.toml"]) == f"{tmp_path / 'c.toml'}: the token is not there"


def test_a_run_that_stays_as_it_was_keeps_its_name_and_folders_whatever_its_file_says_now(tmp_path: Path) -> None:
    """a's file is broken, or calls it otherwise now: a is watched all the same, and nobody else may be called a."""
    stay = {Path("a.toml"): configured(tmp_path, "a")}
    new = {Path("b.toml"): configured(tmp_path, "b", run="a"), Path("c.toml"): configured(tmp_path, "c")}
    (wrong,) = conflicts(new, stay=stay).items()
    assert wrong[0] == Path("b.toml")
    assert "b.toml and a.toml have the same [run] name, a" in str(wrong[1])
