"""A stub of Grafana's HTTP API: not a Grafana. No server of Grafana's runs in these tests.

It keeps what it is given, answers in the shapes of the published description, and refuses a request whose body is not
of the shape that is published: `public/api-merged.json` of github.com/grafana/grafana, commit 643993978b29, definitions
SaveDashboardCommand, CreateFolderCommand, PostAnnotationsCmd and PatchAnnotationsCmd. It is stricter than Grafana,
which passes over a key that it does not know, and as lenient towards null, which is there what is left out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "glsa_a_secret_of_the_tests"  # noqa: S105 - of nothing

_STRING, _INTEGER, _BOOLEAN, _JSON = str, int, bool, dict
PUBLISHED: dict[str, dict[str, Any]] = {
    "SaveDashboardCommand": {
        "UpdatedAt": _STRING,
        "dashboard": _JSON,
        "folderId": _INTEGER,
        "folderUid": _STRING,
        "isFolder": _BOOLEAN,
        "message": _STRING,
        "overwrite": _BOOLEAN,
        "userId": _INTEGER,
    },
    "CreateFolderCommand": {"description": _STRING, "parentUid": _STRING, "title": _STRING, "uid": _STRING},
    "PostAnnotationsCmd": {
        "dashboardId": _INTEGER,
        "dashboardUID": _STRING,
        "data": _JSON,
        "panelId": _INTEGER,
        "tags": list,
        "text": _STRING,
        "time": _INTEGER,
        "timeEnd": _INTEGER,
    },
    "PatchAnnotationsCmd": {
        "data": _JSON,
        "id": _INTEGER,
        "tags": list,
        "text": _STRING,
        "time": _INTEGER,
        "timeEnd": _INTEGER,
    },
}
REQUIRED = {"PostAnnotationsCmd": {"text"}}

Answer = tuple[int, Any]
Trouble = Callable[[BaseHTTPRequestHandler], None]


def wrong_with(body: Any, definition: str) -> str | None:
    """What keeps a body from being of the published shape; None where it is."""
    known = PUBLISHED[definition]
    if not isinstance(body, dict):
        return f"{definition} is an object"
    for key, value in body.items():
        if key not in known:
            return f"{definition} has no {key}"
        if value is not None and type(value) is not known[key]:
            return f"{definition}.{key} is a {known[key].__name__}, not {value!r}"
    if not all(isinstance(tag, str) for tag in body.get("tags") or ()):
        return f"{definition}.tags are strings"
    missing = REQUIRED.get(definition, set()) - body.keys()
    return f"{definition} needs {missing}" if missing else None


@dataclass
class Stub:
    """What was put into it, and what it was asked."""

    server: ThreadingHTTPServer
    datasources: dict[str, str] = field(default_factory=lambda: {"prom": "prometheus", "logs": "loki"})
    """{uid: type}"""

    folders: dict[str, str] = field(default_factory=dict)
    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    annotations: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Method and path of each request, in order."""

    not_published: list[str] = field(default_factory=list)
    """What was wrong with bodies that are not of the published shape."""

    troubles: list[Trouble] = field(default_factory=list)
    """Each is what becomes of one request, in place of its answer."""

    provisioned: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/grafana"

    def writes(self) -> list[str]:
        return [line for line in self.asked if not line.startswith("GET")]

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        match method, *path.removeprefix("/grafana/api/").split("/"):
            case "GET", "datasources", "uid", uid:
                known = self.datasources.get(unquote(uid))
                return (200, {"uid": uid, "type": known}) if known else (404, {"message": "Data source not found"})
            case "GET", "folders", uid:
                return (200, {"uid": uid}) if uid in self.folders else (404, {"message": "folder not found"})
            case "POST", "folders":
                return self._checked(body, "CreateFolderCommand") or self._folder(body)
            case "GET", "dashboards", "uid", uid:
                there = self.dashboards.get(uid)
                return (200, {"dashboard": there, "meta": {}}) if there else (404, {"message": "Dashboard not found"})
            case "POST", "dashboards", "db":
                return self._checked(body, "SaveDashboardCommand") or self._saved(body)
            case "GET", "annotations":
                found = [a for a in self.annotations.values() if set(query.get("tags", ())) <= set(a["tags"])]
                return 200, found[: int(query["limit"][0]) if "limit" in query else 100]
            case "POST", "annotations":
                return self._checked(body, "PostAnnotationsCmd") or self._annotated(len(self.annotations) + 1, body)
            case "PATCH", "annotations", number:
                return self._checked(body, "PatchAnnotationsCmd") or self._annotated(int(number), body)
        return 404, {"message": f"the stub has no {method} {path}"}

    def _checked(self, body: Any, definition: str) -> Answer | None:
        wrong = wrong_with(body, definition)
        if wrong is None:
            return None
        self.not_published.append(wrong)
        return 400, {"message": wrong}

    def _folder(self, body: dict[str, Any]) -> Answer:
        self.folders[body["uid"]] = body["title"]
        return 200, {"uid": body["uid"], "title": body["title"]}

    def _saved(self, body: dict[str, Any]) -> Answer:
        if self.provisioned:
            return 400, {"message": "Cannot save provisioned dashboard"}
        if body["folderUid"] not in self.folders:
            return 400, {"message": "folder not found"}
        uid = body["dashboard"]["uid"]
        version = self.dashboards.get(uid, {}).get("version", 0) + 1
        self.dashboards[uid] = body["dashboard"] | {"id": len(self.dashboards) + 1, "version": version}
        return 200, {"uid": uid, "version": version, "status": "success"}

    def _annotated(self, number: int, body: dict[str, Any]) -> Answer:
        self.annotations[number] = self.annotations.get(number, {"id": number}) | body
        return 200, {"id": number, "message": "Annotation added"}


@contextmanager
def grafana_stub() -> Iterator[Stub]:
    """The stub on loopback, under a path, as behind a proxy."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            stub.asked.append(f"{self.command} {parts.path}")
            if stub.troubles:
                stub.troubles.pop(0)(self)
            elif self.headers["Authorization"] != f"Bearer {TOKEN}":
                says(self, 401, {"message": "Invalid API key"})
            else:
                says(self, *stub.answer(self.command, parts.path, parse_qs(parts.query), body))

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _do  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:  # a client that gave up is what is tested here
            return

    server = Server(("127.0.0.1", 0), Handler)
    stub = Stub(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def says(request: BaseHTTPRequestHandler, code: int, document: Any, kind: str = "application/json") -> None:
    """Answers."""
    text = document if isinstance(document, str) else json.dumps(document)
    request.send_response(code)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(text.encode())))
    request.end_headers()
    request.wfile.write(text.encode())
