"""W&B's API: runs are read, and runs of sentinel's own are written. It deletes nothing.

**A run that a trainer logs to is never written to**, but by `rewound`, which a person has to ask for. W&B keeps a run's
history by the number of the line, and a second process that writes to the same run, be it resumed with resume="must",
writes over the trainer's lines (github.com/wandb/wandb, issue 10349); mode="shared" needs the trainer to have begun in
that mode; and Api().run(…).update() sends the whole config and summary back as they were read, over what the trainer
has changed meanwhile. So an incident is a run of its own, with the loss under the trainer's name for it, which W&B
draws into the same chart; and so is what a restart logs to.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from sentinel.adapters.wandb.bounds import Endless, bound_service, in_time
from sentinel.adapters.wandb.settings import JOB_TYPE, Drawing, Row
from sentinel.vocabulary.errors import ConfigError, WandbUnavailable

Outcome = Literal["created", "changed", "unchanged", "sent, and not seen there yet"]

# What the library raises, which has no class in common: of the pinned version.
_ERRORS = (
    ("wandb.errors", "Error"),
    ("wandb.sdk.lib.service.service_connection", "WandbApiFailedError"),
    ("wandb.sdk.lib.service.service_token", "WandbServiceConnectionError"),
    ("wandb.sdk.mailbox", "HandleAbandonedError"),
    ("wandb.sdk.mailbox", "MailboxClosedError"),
)
# Of this machine, its console and its code nothing is sent.
_PLAIN: dict[str, Any] = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
_PLAIN |= {"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True}
_LAST_STEP = "last_step"
_ROW_WITHIN = 10  # requests that may bring no line: a run whose steps have gaps
_FLUSH_S = 0.01  # for one line, at the end


class Wandb:
    """One project. Errors say what to do and never what the key is. WandbUnavailable where W&B does not answer,
    ConfigError where it says no."""

    def __init__(
        self,
        entity: str,
        project: str,
        key: str,
        *,
        url: str | None = None,
        timeout_s: float = 20.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = f"{entity}/{project}"
        self._entity, self._project = entity, project
        self._timeout_s, self._pause = timeout_s, pause
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to the makers of the library
        self._library = _imported()
        own = (getattr(importlib.import_module(module), name) for module, name in _ERRORS)
        self._raised: tuple[type[Exception], ...] = (*own, OSError, ValueError, RuntimeError)
        where = url or self._library.setup().settings.base_url  # of its own files and variables
        self._settings = self._library.Settings(
            api_key=key,
            base_url=where,
            disable_job_creation=True,
            **_PLAIN,
            init_timeout=timeout_s,
            finish_timeout=timeout_s,
            finish_timeout_raises=True,
            x_graphql_retry_max=2,
            x_graphql_timeout_seconds=timeout_s,
            x_file_stream_retry_max=2,
            x_file_stream_timeout_seconds=timeout_s,
        )
        self.host = urlsplit(where).hostname or where
        overrides = {"base_url": where, "entity": entity}
        with self._errors():
            self._library.setup(settings=self._settings)
            self._api = self._library.Api(overrides=overrides, timeout=max(1, round(timeout_s)), api_key=key)
        bound_service()

    def called(self, name: str) -> list[str]:
        """The ids of the project's runs of that name, sentinel's own left out."""
        with self._errors():
            found = self._api.runs(self.path, filters={"display_name": name})
            return [run.id for run in found if run.job_type != JOB_TYPE]

    def rows(self, run_id: str, first: int = 0, last: int | None = None) -> Iterator[Row]:
        """What was logged to a run, in W&B's order, `first` and `last` of W&B's own _step. ConfigError: no such run."""
        run = self._found(run_id)
        if run is None:
            raise ConfigError(f"{self.host} has no run {self.path}/{run_id}, or this key may not see it")
        with self._errors():
            bounds = {"min_step": first, "max_step": None if last is None else last + 1}
            rows = run.scan_history(page_size=2000, use_cache=False, **bounds)
            try:
                yield from in_time(rows, _ROW_WITHIN * self._timeout_s)
            except Endless as error:
                raise WandbUnavailable(self.host, f"it answers without end: {error}") from None

    def touch_up(self, drawing: Drawing) -> Outcome | None:
        """Brings the words of a drawing up to date; None where it is not there, or not to its last step."""
        there = self._found(drawing.id)
        with self._errors():
            if there is None or there.lastHistoryStep < there.config.get(_LAST_STEP, float("inf")):
                return None
            if (there.notes, sorted(there.tags)) == (drawing.notes, sorted(drawing.tags)):
                return "unchanged"
            there.notes, there.tags = drawing.notes, list(drawing.tags)
            there.update()  # of a run that only sentinel writes to
            return "changed"

    def draw(self, drawing: Drawing, rows: Sequence[Row], step_metric: str | None) -> Outcome:
        """Makes the drawing, or goes on where it was cut short; `step_metric` is the trainer's own axis, if it has one.
        `rows` hold the `_step` that each is drawn at, rising."""
        last = int(rows[-1]["_step"])
        words = _words(drawing) | {"config": {**drawing.config, _LAST_STEP: last}, "job_type": drawing.job_type}
        patience_s = self._timeout_s + len(rows) * _FLUSH_S
        with self._run(**words, resume="allow", settings=self._fresh(finish_timeout=patience_s)) as run:
            begin = run.step
            if step_metric is not None:
                run.define_metric("*", step_metric=step_metric)
            _log(run, (row for row in rows if row["_step"] >= begin))
        return "created" if self._seen(drawing.id, last) else "sent, and not seen there yet"

    def forked(self, drawing: Drawing, run_id: str, last: int) -> bool:
        """Asks for a fork of the run after its line `last`; whether the server has made it with that history."""
        with self._run(**_words(drawing), job_type=drawing.job_type, fork_from=f"{run_id}?_step={last}"):
            pass
        return self._seen(drawing.id, last)

    def rewound(self, run_id: str, last: int) -> bool:
        """Asks the server to cut the run itself after its line `last`; whether it ends there now."""
        with self._run(resume_from=f"{run_id}?_step={last}"):
            pass
        there = self._found(run_id)
        with self._errors():
            return there is not None and there.lastHistoryStep == last

    @contextmanager
    def _run(self, **how: Any) -> Iterator[Any]:
        """A run of the project that this process writes, and finishes."""
        with self._errors(), tempfile.TemporaryDirectory(prefix="sentinel-wandb-") as folder:
            how = {"entity": self._entity, "project": self._project, "dir": folder, "settings": self._fresh()} | how
            run = self._library.init(**how)
            yield run
            run.finish()

    def _seen(self, run_id: str, last: int) -> bool:
        """Whether it has the last step; what was sent is seen there some time later."""
        tries = 8
        for number in range(tries):
            if number:
                self._pause(self._timeout_s / tries)
            there = self._found(run_id)
            with self._errors():
                if there is not None and there.lastHistoryStep >= last:
                    return True
        return False

    def _found(self, run_id: str) -> Any:
        """The run as it is now; None where there is none."""
        self._api.flush()
        try:
            with self._errors():
                return self._api.run(f"{self.path}/{run_id}")
        except _NotThere:
            return None

    def _fresh(self, **changes: float) -> Any:
        """A copy: the library writes into what it is given, a fork's origin too, and the next run would have it."""
        return self._settings.model_copy(update=changes)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (ConfigError, WandbUnavailable):
            raise
        except self._raised as error:
            raise self._named(error) from None  # its text may quote what was sent

    def _named(self, error: BaseException) -> Exception:
        statuses = (getattr(getattr(each, "response", None), "http_status", None) for each in _chain(error))
        code = next((int(status) for status in statuses if status), None)
        if code == 401:
            return ConfigError(f"{self.host} does not know the API key: is it of this server, and not revoked?")
        if code == 403:
            return ConfigError(f"{self.host} does not let this key see {self.path}")
        if code == 404 or _says(error, "could not find run"):
            return _NotThere(f"{self.host} has no {self.path}")
        return WandbUnavailable(self.host, f"it answered {code}" if code else _kind(error))


class _NotThere(ConfigError):  # noqa: N818 - reads as what it says
    """W&B answers that it has none."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def _says(error: BaseException, words: str) -> bool:
    return any(words in str(each).lower() for each in _chain(error))


def _kind(error: BaseException) -> str:
    """Only what kind of error: its text may quote what was sent."""
    if _says(error, "timed out") or _says(error, "timeout"):
        return "no answer in time"
    name = type(error).__name__
    return "it does not answer as a W&B server" if name == "AuthenticationError" else name


def draw_offline(
    drawing: Drawing, rows: Sequence[Row], folder: Path, *, project: str | None, entity: str | None
) -> Path:
    """Writes a run into the client's folder of offline runs, for `wandb sync`; returns its own. Asks no server."""
    library = _imported()
    settings = library.Settings(**_PLAIN)
    where: dict[str, Any] = {"entity": entity, "project": project, "dir": str(folder.parent)}
    run = library.init(mode="offline", **where, **_words(drawing), settings=settings)
    _log(run, rows)
    written = Path(run.settings.sync_dir)
    run.finish()
    return written


def _imported() -> Any:
    """The library, which is not in every installation."""
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'training-sentinel[wandb]'") from error


def _words(drawing: Drawing) -> dict[str, Any]:
    """For `init`."""
    words = {name: getattr(drawing, name) for name in ("id", "name", "notes", "group")}
    return words | {"tags": list(drawing.tags), "config": dict(drawing.config)}


def _log(run: Any, rows: Iterable[Row]) -> None:
    for row in rows:
        run.log({key: value for key, value in row.items() if key != "_step"}, step=int(row["_step"]))
