"""A start from the kept state judges as a full reading does, reads only what is new, and never trusts a wrong file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.act import judge_cache, kept_ancestor
from sentinel.act.following import Following
from sentinel.act.judge_cache import JudgeCache
from sentinel.act.kept_ancestor import KeptAncestor
from sentinel.act.sealed_file import FOLDER
from sentinel.act.starts import Starts
from sentinel.adapters import journal
from sentinel.adapters.journal import Journals
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.judge.history import History
from sentinel.judge.kept_state import to_data
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Record, RunFinished, RunStarted, Sample, StateLoaded, StateSaved, encode
from tests.support.kept_configs import config_of
from tests.support.lives import life, stories

THRESHOLDS = Thresholds()
LISTED = set(range(10, 500, 10))  # steps of the checkpoints that are listed, also such as nobody has reached


class Counted(Journals):
    """Journals that count the samples that were read of them."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.read = 0

    def new(self) -> Iterator[Record]:
        for record in super().new():
            self.read += isinstance(record, Sample)
            yield record

    def again(self, attempt: int, after: int = -1) -> Iterator[Sample]:
        for sample in super().again(attempt, after):
            self.read += 1
            yield sample


class Watching:
    """What a start reads and follows; without a cache where `of` is None."""

    def __init__(self, state_dir: Path, of: str | None = "a run", thresholds: Thresholds = THRESHOLDS) -> None:
        self.journals = Counted(state_dir)
        self.history = History(again=self.journals.again)
        self.cache = JudgeCache(state_dir, thresholds, [of]) if of is not None else None
        self.following = Following(self.history, thresholds, (), *([self.cache.earlier] if self.cache else []))
        if self.cache is not None:
            self.cache.restore(self.journals, self.following)
        self.following.expect(LISTED)
        self.look()

    def look(self) -> None:
        for record in self.journals.new():
            self.history.push(record)
            self.following.take(record)
        self.following.catch_up()
        if self.cache is not None:
            self.cache.keep(self.following)

    @property
    def found(self) -> list[str]:
        """All that it knows, to the last digit."""
        following = self.following
        state = to_data([following.series, following._unhealthy_spans], {"thresholds": following._thresholds})
        attempts = [
            (a.number, a.made, a.samples[-1:], a.started, a.loaded, a.layers[-1:], a.validations, a.saved, a.finished)
            for a in self.history.attempts.values()
        ]
        return [repr(one) for one in (state, attempts, following.positions(LISTED), self.journals.unreadable)]


def tell(state_dir: Path, records: Iterable[Record]) -> None:
    (state_dir / "attempts").mkdir(parents=True, exist_ok=True)
    lines: dict[int, list[str]] = {}
    for record in records:
        lines.setdefault(record.attempt, []).append(encode(record) + "\n")
    for attempt, told in lines.items():
        with (state_dir / "attempts" / f"{attempt:04d}.jsonl").open("a") as file:
            file.writelines(told)


def read_whole(state_dir: Path) -> list[str]:
    return Watching(state_dir, None).found


def files(state_dir: Path) -> list[Path]:
    return sorted((state_dir / FOLDER).glob("*"))


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps a state after every sample, and marks many places: short runs have all that long ones have."""
    monkeypatch.setattr(judge_cache, "_LEAST_NEW", 1)
    monkeypatch.setattr(judge_cache, "_EVERY_S", 0.0)
    monkeypatch.setattr(journal, "_MARKED_SAMPLES", 7)
    monkeypatch.setattr("sentinel.judge.history.LAST_SAMPLES", 16)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("examples", [25, pytest.param(200, marks=pytest.mark.full)])
def test_whatever_the_journals_tell_a_start_from_the_kept_state_finds_what_a_full_reading_finds(
    tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    @given(stories(), st.randoms(use_true_random=False))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def check(pieces: list[list[Record]], rng: random.Random) -> None:
        state_dir = tmp_path_factory.mktemp("run")
        watching = None
        for piece in pieces:
            tell(state_dir, piece)
            for record in piece[-1:]:
                number = record.attempt
                tell(state_dir, [StateLoaded(attempt=number, global_step=1, time_unix_s=0.0, adam_variance_l1=0.5)])
                if rng.random() < 0.2:
                    with (state_dir / "attempts" / f"{number:04d}.jsonl").open("a") as file:
                        file.write("no line of ours\n")
            if watching is None or rng.random() < 0.6:
                watching = Watching(state_dir)
                assert watching.found == read_whole(state_dir)
            else:
                watching.look()
        shutil.rmtree(state_dir)

    check()


def two_attempts(first: int = 900, back_to: int = 800, second: int = 300) -> list[Record]:
    restart = [RunStarted(attempt=2, time_unix_s=0.0, parent_attempt=1, resumed_from=back_to)]
    return [*life(1, 1, first), *restart, *life(2, back_to + 1, second)[1:]]


def test_a_start_reads_only_what_is_new(tmp_path: Path) -> None:
    tell(tmp_path, two_attempts())
    first = Watching(tmp_path)
    made = sum(attempt.made for attempt in first.history.attempts.values())
    assert first.journals.read > made  # the lineage of the second attempt, once more
    tell(tmp_path, life(2, 1101, 40)[1:])
    again = Watching(tmp_path)
    assert again.journals.read <= 40
    assert again.found == read_whole(tmp_path)
    tell(tmp_path, [RunFinished(attempt=2, global_step=1140, time_unix_s=0.0, reason="finished")])
    ended = Watching(tmp_path)
    assert ended.found == read_whole(tmp_path)
    assert ended.history.attempts[2].finished is not None


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("restarted", [False, True])
def test_an_attempt_that_goes_back_is_judged_from_the_nearest_state_before(tmp_path: Path, restarted: bool) -> None:
    """Whether the watch sees the new attempt itself, or one that starts later."""
    told = life(1, 1, 3000)
    watching = None
    for at in range(0, len(told), 100):
        tell(tmp_path, told[at : at + 100])
        watching = watching or Watching(tmp_path)
        watching.look()
    assert watching is not None
    tell(tmp_path, [RunStarted(attempt=2, time_unix_s=0.0, parent_attempt=1, resumed_from=2800)])
    tell(tmp_path, life(2, 2801, 30)[1:])
    watching = Watching(tmp_path) if restarted else watching
    before = 0 if restarted else watching.journals.read
    watching.look()
    assert watching.journals.read - before < 700
    assert watching.found == read_whole(tmp_path)


@pytest.mark.usefixtures("_always")
def test_the_files_are_few_however_long_the_run_and_reach_back_by_doublings(tmp_path: Path) -> None:
    told, watching, most = life(1, 1, 2600), None, 0
    for at in range(0, len(told), 50):
        tell(tmp_path, told[at : at + 50])
        watching = watching or Watching(tmp_path)
        watching.look()
        most = max(most, len(files(tmp_path)))
    assert most <= 16
    made = sorted(int(path.name.split("-")[1]) for path in files(tmp_path))
    ages = [made[-1] - one for one in reversed(made)]
    assert ages[-1] > 1000
    assert all(older <= 3 * max(younger, 100) for younger, older in pairwise(ages))


def ill_life(seed: int) -> list[Record]:
    return life(1, 1, 1200, seed=seed, ill_from=1000)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut short": _cut,
    "changed in one bit": _flip,
    "of another kind": lambda path: path.write_bytes(os.urandom(4096)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_damaged_counts_for_nothing(tmp_path: Path, damage: str) -> None:
    tell(tmp_path, ill_life(0))
    Watching(tmp_path)
    (kept,) = files(tmp_path)
    DAMAGE[damage](kept)
    watching = Watching(tmp_path)
    assert watching.journals.read > 1000
    assert watching.found == read_whole(tmp_path)


def test_the_state_of_another_run_counts_for_nothing(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    tell(one, ill_life(0))
    tell(other, life(1, 1, 1200, seed=1))
    Watching(one)
    shutil.copytree(one / FOLDER, other / FOLDER)
    watching = Watching(other)
    assert (watching.journals.read > 1000, watching.found) == (True, read_whole(other))


def test_another_version_another_run_and_other_thresholds_read_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(tmp_path, ill_life(0))
    Watching(tmp_path)
    assert Watching(tmp_path).journals.read == 0
    assert Watching(tmp_path, of="another run").journals.read > 1000
    Watching(tmp_path)
    strict = Thresholds(patience_steps=20)
    assert Watching(tmp_path, thresholds=strict).journals.read > 1000
    Watching(tmp_path)
    monkeypatch.setattr(judge_cache, "code_digest", lambda: "of another version")
    assert Watching(tmp_path).journals.read > 1000


def test_the_state_is_of_the_code_that_is_installed() -> None:
    assert judge_cache.code_digest() == judge_cache.code_digest()
    assert len(judge_cache.code_digest()) == 64


@pytest.mark.parametrize("how", ["begun again, shorter", "begun again, longer", "changed before its end", "removed"])
def test_journals_that_are_others_than_those_that_were_read_are_read_whole(tmp_path: Path, how: str) -> None:
    tell(tmp_path, two_attempts())
    Watching(tmp_path)
    path = tmp_path / "attempts" / "0001.jsonl"
    if how == "begun again, shorter":
        path.unlink()
        tell(tmp_path, life(1, 1, 850, seed=3))
    elif how == "begun again, longer":
        path.unlink()
        tell(tmp_path, life(1, 1, 2000, seed=3))
    elif how == "changed before its end":
        data = path.read_bytes()
        path.write_bytes(data[:-20].replace(b'"skipped": false', b'"skipped": true ') + data[-20:])
    else:
        path.unlink()
    watching = Watching(tmp_path)
    assert watching.journals.read > 200
    assert watching.found == read_whole(tmp_path)


def test_what_came_too_late_to_be_judged_in_its_place_is_found_by_the_next_start(tmp_path: Path) -> None:
    told = [r for r in life(1, 1, 900) if isinstance(r, RunStarted | Sample)]
    tell(tmp_path, told[:-60])
    tell(tmp_path, [RunStarted(attempt=2, time_unix_s=0.0, parent_attempt=1, resumed_from=890), *life(2, 891, 300)[1:]])
    watching = Watching(tmp_path)
    tell(tmp_path, told[-60:])
    watching.look()
    assert Watching(tmp_path).found == read_whole(tmp_path)


def test_a_folder_that_cant_be_written_or_belongs_to_another_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(tmp_path, ill_life(0))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert Watching(tmp_path).found == read_whole(tmp_path)
    assert not (tmp_path / FOLDER).exists()
    monkeypatch.undo()
    (tmp_path / FOLDER).write_text("a file in its place")
    assert Watching(tmp_path).found == read_whole(tmp_path)


def test_a_state_is_written_seldom(tmp_path: Path) -> None:
    tell(tmp_path, life(1, 1, 400))
    now_s = [0.0]
    cache = JudgeCache(tmp_path, THRESHOLDS, [], clock=lambda: now_s[0])
    watching = Watching(tmp_path, None)
    watching.cache = cache
    cache.restore(watching.journals, watching.following)
    watching.look()
    assert files(tmp_path) == []  # so few are read at once
    tell(tmp_path, life(1, 401, 1000)[1:])
    watching.look()
    (first,) = files(tmp_path)
    tell(tmp_path, life(1, 1401, 2000)[1:])
    watching.look()
    assert files(tmp_path) == [first]
    now_s[0] = 301.0
    watching.look()
    assert len(files(tmp_path)) == 2
    tell(tmp_path, life(1, 3401, 700)[1:])
    watching.look()
    cache.keep(watching.following, at_once=True)
    newest = files(tmp_path)[-1]
    assert newest.name.endswith(f"{watching.following.series.last_step:012d}.state")


def test_the_run_before_a_start_is_read_once_by_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_ancestor, "_LEAST_STEPS", 100)
    saved = StateSaved(attempt=1, global_step=800, time_unix_s=0.0, adam_variance_l1=0.5, rank_variance_l1=(0.2, 0.3))
    tell(tmp_path, [saved, *two_attempts()])
    read = []
    for _ in range(2):
        watching = Watching(tmp_path)
        attempt, before = watching.history.attempts[2], watching.journals.read
        known = Starts(KeptAncestor(tmp_path, watching.journals, "a run"))
        read.append((known._ancestor(watching.history, attempt), watching.journals.read - before))
    (whole, all_read), (kept, read_again) = read
    assert whole is not None
    assert kept is not None
    assert (all_read > 800, read_again) == (True, 0)
    assert kept.saved == saved
    assert repr(replace(kept, trail=None)) == repr(replace(whole, trail=None))  # type: ignore[arg-type]
    assert kept.trail.columns == whole.trail.columns
    tell(tmp_path, life(1, 901, 20)[1:])
    grown = Watching(tmp_path)
    assert KeptAncestor(tmp_path, grown.journals, "a run").read(grown.history, grown.history.attempts[2]) is None


def test_a_look_keeps_the_state_and_the_next_command_goes_on_from_it(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    tell(tmp_path / "s", two_attempts())
    first = observer_of(config, neighbours_of(config)).look(2000.0)
    assert len(files(tmp_path / "s")) == 1
    near = neighbours_of(config)
    again = observer_of(config, replace(near, source=(journals := Counted(near.state_dir)))).look(2000.0)
    assert journals.read == 0
    assert (again.verdict, again.facts.readings.positions) == (first.verdict, first.facts.readings.positions)
    assert repr(again.series.events) == repr(first.series.events)
