"""Grafana's HTTP API, through `grafana-client`: folder, datasource, dashboards, annotations. It deletes nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

import niquests
from grafana_client.api import GrafanaApi
from grafana_client.client import GrafanaClientError, GrafanaException, GrafanaServerError, GrafanaTimeoutError

from sentinel.adapters.http_client import within
from sentinel.plan.alerts.annotations import Annotation
from sentinel.vocabulary.errors import ConfigError, GrafanaUnavailable

Outcome = Literal["created", "changed", "unchanged"]

_MOST_MARKS = 10_000  # annotations of one run that are asked for at once; more than a run has ever had


class Grafana:
    """One organisation of one Grafana; closed at the end of its `with`. A call takes at most `tries` times `timeout_s`,
    and the pauses between. It raises GrafanaUnavailable where Grafana does not answer or is not itself, ConfigError
    where it says no."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        ca_file: Path | None = None,
        timeout_s: float = 10.0,
        tries: int = 3,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError("Grafana's address should look like https://grafana.example.com or …:3000/under/a/path")
        if parts.username is not None or parts.password is not None:
            raise ConfigError("Grafana's address has a user or a password in it: a token goes into GRAFANA_TOKEN")
        self.host = parts.hostname
        self._api: Any = GrafanaApi(  # its own types end here
            token,
            host=f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname,
            port=parts.port,
            protocol=parts.scheme,
            url_path_prefix=f"{parts.path.strip('/')}/".lstrip("/"),
            verify=True if ca_file is None else str(ca_file),
            timeout=timeout_s,
            user_agent="sentinel",
        )
        self._api.client.s.max_redirects = 0  # a POST that follows one arrives without its body, or elsewhere
        self._timeout_s = timeout_s
        self._tries = tries
        self._pause = pause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.client.s.close()

    def datasource(self, uid: str) -> None:
        """Makes sure that there is a Prometheus of this uid."""
        found = self._found(lambda: self._api.datasource.get_datasource_by_uid(quote(uid, safe="")))
        if found is None:
            raise ConfigError(f"{self.host} has no datasource of the uid {uid!r}; its page's address there ends in it")
        if found.get("type") != "prometheus":
            raise ConfigError(f"the datasource {uid!r} of {self.host} is of type {found.get('type')}, not prometheus")

    def folder(self, uid: str, title: str) -> Outcome:
        """Makes sure that there is a folder. One that a person has renamed keeps its name."""
        if self._found(lambda: self._api.folder.get_folder(quote(uid, safe=""))) is not None:
            return "unchanged"
        self._ask(lambda: self._api.folder.create_folder(title, uid=uid))
        return "created"

    def dashboard(self, uid: str) -> dict[str, Any] | None:
        """The dashboard as it is there; None where there is none."""
        found = self._found(lambda: self._api.dashboard.get_dashboard(quote(uid, safe="")))
        return None if found is None else dict(found["dashboard"])

    def save(self, document: dict[str, Any], folder: str, message: str) -> None:
        """Writes a dashboard over the one of its uid; Grafana keeps the earlier version in its history."""
        wanted = {**document, "id": None}
        command = {"dashboard": wanted, "folderUid": folder, "message": message, "overwrite": True}
        self._ask(lambda: self._api.dashboard.update_dashboard(command))

    def annotate(self, mark: Annotation, there: dict[str, dict[str, Any]]) -> Outcome:
        """Makes sure of one mark; `there` is what `marks` found."""
        begin, end = (math.floor(unix_s * 1000) for unix_s in (mark.time_unix_s, mark.end_unix_s))
        facts: dict[str, Any] = {"time_from": begin, "time_to": end, "tags": list(mark.tags), "text": mark.text}
        old = there.get(mark.key)
        if old is None:
            self._ask(lambda: self._api.annotations.add_annotation(**facts), once=True)
            return "created"
        if (old.get("time"), old.get("timeEnd") or begin, old.get("text")) == (begin, end, mark.text):
            return "unchanged"
        self._ask(lambda: self._api.annotations.partial_update_annotation(old["id"], **facts))
        return "changed"

    def marks(self, run: str) -> dict[str, dict[str, Any]]:
        """{key: the annotation} of what sentinel has pushed of a run."""
        tags = [quote(tag, safe="") for tag in ("sentinel", f"run:{run}")]
        found = self._ask(lambda: self._api.annotations.find_annotations(tags=tags, limit=_MOST_MARKS)) or []
        keys = ((tag.removeprefix("key:"), each) for each in found for tag in each["tags"] if tag.startswith("key:"))
        return dict(keys)

    def _found(self, call: Callable[[], Any]) -> Any:
        try:
            return self._ask(call)
        except _NotThere:
            return None

    def _ask(self, call: Callable[[], Any], *, once: bool = False) -> Any:
        """One request, tried again where it is known not to have been refused. `once`: what would be done twice if only
        the answer was lost is not tried again; the next push finds it."""
        tries = 1 if once else self._tries
        for number in range(1, tries + 1):
            try:
                return self._answer(call)
            except GrafanaUnavailable:
                if number == tries:
                    raise
                self._pause(2.0 ** (number - 1))
        raise AssertionError("a loop that ends otherwise")

    def _answer(self, call: Callable[[], Any]) -> Any:
        try:
            answer = within(self._timeout_s, call)
        except (GrafanaTimeoutError, TimeoutError) as error:
            raise GrafanaUnavailable(self.host, "no answer in time") from error
        except GrafanaServerError as error:
            raise GrafanaUnavailable(self.host, f"it answered {error.status_code}") from error
        except GrafanaClientError as error:
            raise self._refused(error) from error
        except (GrafanaException, niquests.exceptions.RequestException, OSError) as error:
            raise GrafanaUnavailable(self.host, _reason(error)) from error
        if isinstance(answer, str):  # a proxy's page that asks for a password, as 200
            raise GrafanaUnavailable(self.host, "it does not answer as a Grafana")
        return answer

    def _refused(self, error: GrafanaClientError) -> Exception:
        code = int(error.status_code)
        if code == 404:
            return _NotThere(f"{self.host} has no such thing: {error.message}")
        if code == 401:
            return ConfigError(f"{self.host} does not know the token: is it of this Grafana, and not expired?")
        if code == 403:
            return ConfigError(f"{self.host} does not let this token do that: its service account should be an Editor")
        if code == 429:
            return GrafanaUnavailable(self.host, "it is asked too often")
        return ConfigError(f"{self.host} refuses: {error.message}")


class _NotThere(ConfigError):  # noqa: N818 - reads as what it says
    """Grafana answers that it has none."""


def _reason(error: Exception) -> str:
    """Only the kind of error: its text may quote what was sent."""
    if isinstance(error, niquests.exceptions.TooManyRedirects):
        return "it redirects to another address: use that one"
    if isinstance(error, niquests.exceptions.SSLError):
        return "its certificate is not trusted; --ca-file names one to trust"
    if isinstance(error, niquests.exceptions.JSONDecodeError):
        return "it does not answer as a Grafana"
    return type(error).__name__
