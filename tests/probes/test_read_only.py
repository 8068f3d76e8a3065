"""Real probe processes whose command hides a folder of the run: refused, and, with the guard off, unable to write."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from sentinel.adapters.read_only import PROGRAM, command_through, granted, held_by
from sentinel.config import Bisect, Config, Launcher, Run
from sentinel.daemon.probes import probe_jobs
from sentinel.lab.probes.at_work import ProbeJob
from sentinel.lab.probes.command import Folders
from sentinel.lab.probes.guard import Guard
from sentinel.lab.probes.probe import Probe
from sentinel.vocabulary.errors import ConfigError
from tests.adapters.pagers import until

# Finds the folder as a shell, a URL, a JSON or a list reader would, and does to it what it can.
ATTACK = """
import json, os, pathlib, re, sys, urllib.parse
where, own = sys.argv[1], pathlib.Path(os.environ["SENTINEL_PROBE_CHECKPOINTS"])
where = os.environ[where[4:]] if where.startswith("env:") else where
where = json.loads(where)["train"]["save"] if where.startswith("{") else where
where = urllib.parse.unquote(where.removeprefix("file://"))
where = pathlib.Path(os.path.expanduser(os.path.expandvars(re.split("[:,;]", where)[-1])))
def tried(act):
    try:
        act()
    except OSError:
        pass
for file in sorted(where.rglob("*")):
    tried(lambda: file.write_bytes(b"lost"))
    tried(lambda: os.truncate(file, 0))
    tried(lambda: file.rename(file.with_suffix(".moved")))
    tried(lambda: file.unlink())
tried(lambda: (where / "made").write_text("made"))
tried(lambda: where.joinpath("link").symlink_to("/"))
tried(lambda: os.link(own / "latest", where / "hard"))
tried(lambda: where.rename(where.with_name("elsewhere")))
(own / "attacked").write_text(str(len(list(where.rglob("*")))))
"""
SPELLINGS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "in a shell's word": lambda at: ("bash", "-c", f'exec {sys.executable} attack.py {at} "$@"', "bash"),
    "set in a shell's word": lambda at: (
        *("bash", "-c", f'D={at.parent}; exec {sys.executable} attack.py $D/{at.name} "$@"', "bash"),
    ),
    "after a change of folder": lambda at: (
        *("bash", "-c", f'A=$PWD/attack.py; cd {at.parent}; exec {sys.executable} $A {at.name} "$@"', "bash"),
    ),
    "quoted in two": lambda at: (
        *("bash", "-c", f"exec {sys.executable} attack.py {at.parent}/'{at.name[:2]}'\"{at.name[2:]}\"", "bash"),
    ),
    "JSON": lambda at: (json.dumps({"train": {"save": str(at)}}),),
    "JSON with escapes": lambda at: (json.dumps({"train": {"save": str(at)}}).replace("/", "\\u002f"),),
    "a URL": lambda at: (f"file://{at}",),
    "a URL with percent escapes": lambda at: (f"file://{quote(str(at).replace('c', '%63'), safe='/%')}",),
    "a list by colons": lambda at: (f"/elsewhere:{at}",),
    "a list by commas": lambda at: (f"/elsewhere,{at}",),
    "doubled slashes and ..": lambda at: (f"{at.parent}//{at.name}/../{at.name}/.",),
    "relative": lambda at: (f"./../{at.parent.name}/{at.name}",),
    "through a symbolic link": lambda at: (str(at.parent.parent / "link"),),
    "from the home folder": lambda at: (f"~/{at.parent.name}/{at.name}",),
    "by a variable of the environment": lambda at: (f"$BASE/{at.name}",),
    "a variable of the environment": lambda _: ("env:OTHER",),
}
REPLACED = ("doubled slashes and ..", "relative", "through a symbolic link")  # a whole word: the probe's own instead
PROBE = Probe(name="control", tag="global_step10", global_step=10, until_step=20)


def digests(folder: Path) -> dict[str, str]:
    found = (path for path in sorted(folder.rglob("*")) if "bisect" not in path.parts)
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "folder" for p in found}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run = tmp_path / "run"
    (run / "checkpoints" / "global_step10").mkdir(parents=True)
    (run / "checkpoints" / "global_step10" / "weights.pt").write_bytes(b"weights" * 1000)
    (run / "checkpoints" / "latest").write_text("global_step10")
    (run / "state" / "attempts").mkdir(parents=True)
    (run / "state" / "attempts" / "0001.jsonl").write_text("{}\n")
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events.1").write_bytes(b"events")
    (run / "train.log").write_text("log\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "attack.py").write_text(ATTACK)
    (tmp_path / "link").symlink_to(run / "checkpoints")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BASE", str(run))
    return tmp_path


@pytest.fixture(scope="module")
def means() -> str | None:
    return held_by()[0]


def job_of(root: Path, words: tuple[str, ...], **bisect: tuple[str, ...]) -> ProbeJob:
    run = root / "run"
    program = () if words[0] == "bash" else (sys.executable, "attack.py")
    config = Config(
        run=Run(name="x", checkpoints=run / "checkpoints", state_dir=run / "state", tensorboard=run / "tensorboard"),
        launcher=Launcher(command=(*program, *words), working_directory=root / "code", log=run / "train.log"),
        bisect=Bisect(**{"options": ("--save={checkpoints}",), **bisect}),  # type: ignore[arg-type]
    )
    return probe_jobs(config)(PROBE, run / "state" / "bisect" / "incident-1" / "control")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_probe_that_names_the_runs_checkpoints_is_refused_and_without_the_guard_loses_no_byte_of_them(
    root: Path, monkeypatch: pytest.MonkeyPatch, spelling: str, means: str | None
) -> None:
    if not means:
        pytest.skip("neither Landlock nor namespaces work here")
    checkpoints = root / "run" / "checkpoints"
    if spelling == "a variable of the environment":
        monkeypatch.setenv("OTHER", json.dumps({"train": {"save": str(checkpoints)}}))
    words = SPELLINGS[spelling](checkpoints)
    before = digests(root / "run")
    if spelling in REPLACED:
        assert str(job_of(root, words).folder / "checkpoints") in job_of(root, words).launcher.start_commands([])[0]
        assert f" {words[0]} " not in job_of(root, words).launcher.start_commands([])[0]
    else:
        with pytest.raises(ConfigError, match="which is the run's"):
            job_of(root, words)
    monkeypatch.setattr(Guard, "named_in", lambda *_: None)
    monkeypatch.setattr(Folders, "own_word", lambda _, word: word)
    job = job_of(root, words)
    job.begin(PROBE, checkpoints)
    attacked = job.folder / "checkpoints" / "attacked"
    until(lambda: attacked.exists() and attacked.read_text())
    job.stop()
    assert int(attacked.read_text()) == 3, "it ran, and saw the run's files"
    assert digests(root / "run") == before


@pytest.mark.parametrize("name", ["state", "tensorboard", "train.log"])
def test_the_state_folder_the_event_files_and_the_log_are_the_runs_too(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"still names \S*{name}, which is the run's"):
        job_of(root, (json.dumps({"to": str(root / "run" / name / "new")}),))


def test_the_probes_own_folder_the_data_and_named_inputs_are_no_reason_to_refuse(root: Path) -> None:
    vocabulary = root / "run" / "checkpoints" / "vocabulary.json"
    vocabulary.write_text("{}")
    own = root / "run" / "state" / "bisect" / "incident-1" / "control"
    shell = ("bash", "-c", f"exec train '--state' {own} '--saves' {own}/checkpoints --lr 1")
    assert job_of(root, shell).folder == own
    words = (f"--data={root / 'data'}", "checkpoints2", f'{{"save": "{own}/checkpoints"}}', f"a:{root / 'run'}")
    assert job_of(root, words).folder == own
    with pytest.raises(ConfigError, match="inputs what a probe only reads"):
        job_of(root, (f"v:{vocabulary}",))
    config_of = {"inputs": (vocabulary,), "options": ("--save={checkpoints}",)}
    assert job_of(root, (f"v:{vocabulary}",), **config_of).folder == own  # type: ignore[arg-type]


@pytest.mark.parametrize("means", ["landlock", "mounts"])
def test_each_means_leaves_the_probes_own_folder_writable_and_nothing_of_the_run(root: Path, means: str) -> None:
    run = root / "run"
    own = run / "state" / "bisect" / "own"
    own.mkdir(parents=True)
    (own / "latest").write_text("x")
    paths = [run / "checkpoints", run / "state", run / "tensorboard", run / "train.log"]
    words = [*command_through(own, paths)]
    words[4:4] = [f"--by={means}"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"{means} does not work here: {tried.stderr}")
    before = digests(run)
    for path in paths:
        line = [*words, sys.executable, str(root / "code" / "attack.py"), str(path)]
        subprocess.run(line, env={"SENTINEL_PROBE_CHECKPOINTS": str(own), "PATH": "/bin"}, check=True)
    assert digests(run) == before
    assert (own / "attacked").exists()


def test_a_temporary_folder_that_holds_the_run_is_granted_without_it(root: Path) -> None:
    run, own = root / "run", root / "run" / "state" / "own"
    for name in ("here", "run/inside"):
        (root / name).mkdir()
    found = set(granted(own, [run / "state", run / "checkpoints"], [], {"SLURM_TMPDIR": str(root)}))
    assert {own, root / "here", root / "code", run / "tensorboard", run / "inside"} <= found
    assert not {root, run, run / "state", run / "checkpoints", root / "link"} & found


def test_a_program_that_is_not_there_is_said_and_where_nothing_holds_the_command_runs_and_says_so(root: Path) -> None:
    words = [*command_through(root / "code", [root / "run"])]
    gone = subprocess.run([*words, "no-such-program"], capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stderr) == (127, "sentinel: program 'no-such-program' not found\n")
    text = PROGRAM.read_text().replace("_CREATE, _ADD, _RESTRICT = 444", "_CREATE, _ADD, _RESTRICT = 9999")
    words[3] = str(root / "other.py")
    Path(words[3]).write_text(text.replace("_NEW_USER, _NEW_MOUNTS = 0x10000000", "_NEW_USER, _NEW_MOUNTS = 0x1"))
    ran = subprocess.run([*words, "echo", "ran"], capture_output=True, text=True, check=False)
    assert ran.stdout == "ran\n"
    assert "are not read-only to this probe: landlock: Function not implemented; mounts: " in ran.stderr


def test_a_bare_word_of_a_working_directory_that_is_the_runs_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "global_step10").mkdir()
    guard = Guard((tmp_path,), tmp_path / "own", tmp_path)
    assert guard.named_in(["python", "train.py", "lr=3e-4"], {}) is None
    for word in ("./new", "global_step10", ".", "a/b"):
        assert guard.named_in([word], {}) == (word, tmp_path)
    assert replace(guard, inputs=(tmp_path / "a",)).named_in(["a/b"], {}) is None


def test_of_words_between_two_quotes_each_is_looked_at_by_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    own = run / "state" / "probe"
    guard = Guard((run / "checkpoints", run / "state"), own, run)
    assert guard.named_in([f"exec 'train' --state={own} --save={own}/checkpoints '--last=9'"], {}) is None
    wrong = f"exec 'train' --state={own} --save={run}/checkpoints '--last=9'"
    assert guard.named_in([wrong], {}) == (wrong, run / "checkpoints")
