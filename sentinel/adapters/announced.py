"""Whether the exporter that an attempt has announced in STATE_DIR/scrape.json answers as that attempt, now."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from sentinel import bounded

_WITHIN_S = 1.5  # that a name server, a node that is gone and a slow answer may take together
_NOT_AGAIN_S = 60.0  # for which an address that has not answered in time is not asked again: each action of a plan asks
_LONGEST_ANSWER_BYTES = 8 << 20
_STEPS = "sentinel_steps_total"


class Announced:
    """An exporter on loopback, the default, is not announced: then nothing is asked. No answer says nothing."""

    def __init__(self, state_dir: Path, *, within_s: float = _WITHIN_S) -> None:
        self._path = state_dir / "scrape.json"
        self._within_s = within_s
        self._late: tuple[str, float] | None = None

    def answers_as(self, attempt: int) -> str | None:
        """The sentence that says so; None where nothing is announced of the attempt, or nothing answers as it."""
        if (target := self._target(attempt)) is None:
            return None
        url, run = target
        if self._late is not None and self._late[0] == url and time.monotonic() - self._late[1] < _NOT_AGAIN_S:
            return None
        found: list[float] = []
        asking = Thread(target=self._ask, args=(url, run, attempt, found), name="sentinel-exporter", daemon=True)
        began_s = time.monotonic()
        asking.start()
        asking.join(self._within_s)  # a name server keeps to nobody's timeout
        if asking.is_alive() or time.monotonic() - began_s >= self._within_s:
            self._late = (url, time.monotonic())
        return f"the exporter of attempt {attempt} answers at {url}, after {found[0]:.0f} steps" if found else None

    def _target(self, attempt: int) -> tuple[str, str] | None:
        try:
            (group,) = json.loads(bounded.read_text(self._path, bounded.SECRET_BYTES))
            labels, (where,) = group["labels"], group["targets"]
            if labels["attempt"] != str(attempt):
                return None
            return f"{labels.get('__scheme__', 'http')}://{where}/metrics", str(labels["run"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _ask(self, url: str, run: str, attempt: int, found: list[float]) -> None:
        """Its certificate is not looked at: an answer can only keep sentinel from acting."""
        try:
            parts = urlsplit(url)
            kind: Any = http.client.HTTPConnection
            if parts.scheme == "https":
                kind = partial(http.client.HTTPSConnection, context=ssl._create_unverified_context())  # noqa: S323
            with closing(kind(parts.hostname or "", parts.port, timeout=self._within_s)) as asked:
                asked.request("GET", parts.path, headers={"Accept": "text/plain"})
                answer = asked.getresponse()
                text = answer.read(_LONGEST_ANSWER_BYTES).decode("utf-8") if answer.status == http.client.OK else ""
            for family in text_string_to_metric_families(text):
                known = {"run": run, "attempt": str(attempt)}
                found.extend(one.value for one in family.samples if one.name == _STEPS and one.labels == known)
        except (OSError, ValueError, http.client.HTTPException):
            return
