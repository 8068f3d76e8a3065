"""A stub of the API that the `wandb` library speaks: not a W&B server. None of theirs runs in these tests.

It keeps runs, answers the operations that the real client (its Go service, wandb-core) sends for a run being read,
made, resumed and written to, and says of every request what it was. An operation that it does not know it answers with
an error, and notes it. What a real server would check beyond that it does not.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"  # of nothing

_OPERATION = re.compile(r"(query|mutation)\s+(\w+)")


@dataclass
class Run:
    """A run as the stub has it."""

    name: str
    display_name: str = ""
    state: str = "finished"
    notes: str = ""
    tags: list[str] = field(default_factory=list)
    job_type: str = ""
    group: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """As the API tells it."""
        steps = [row["_step"] for row in self.history]
        keys = sorted({key for row in self.history for key in row})
        last = max(steps, default=-1)
        return {
            "id": f"id-{self.name}",
            "projectId": "1",
            "tags": self.tags,
            "name": self.name,
            "displayName": self.display_name or self.name,
            "sweepName": None,
            "state": self.state,
            "config": json.dumps(self.config),
            "group": self.group,
            "jobType": self.job_type,
            "commit": None,
            "readOnly": False,
            "createdAt": "2026-01-01T00:00:00Z",
            "heartbeatAt": "2026-01-01T00:00:00Z",
            "description": "",
            "notes": self.notes,
            "systemMetrics": "{}",
            "summaryMetrics": json.dumps(self.summary),
            "historyLineCount": len(self.history),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in self.history[-1:]]),
            "eventsTail": "[]",
            "wandbConfig": json.dumps({"t": 1}),
            "user": {"name": "someone", "username": "someone"},
            "historyKeys": {"lastStep": last, "keys": {key: {"typeCounts": []} for key in keys}, "sets": []},
            "project": {"id": "1", "name": "pretraining", "entity": {"id": "1", "name": "lab"}},
        }


@dataclass
class Stub:
    """What is in it, and what it was asked."""

    server: ThreadingHTTPServer
    runs: dict[str, Run] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(operation, the run that it names), in order; a file stream is the operation `file_stream`."""

    unknown: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    """The API keys that requests came with."""

    deaf: bool = False
    """Answers 503 to everything."""

    deaf_to: str | None = None
    """Answers 503 to this operation."""

    refuses: bool = False
    """Answers 401 to everything."""

    drips_on: str | None = None
    """An operation whose answer comes a byte each 50 ms, for ever."""

    floods_on: str | None = None
    """An operation whose answer has no end."""

    branches: bool = True
    """Makes forks, and rewinds runs; else it has no such mutation and passes over a fork's branch point."""

    swallows: bool = False
    """Says yes to what is written into a file stream, and keeps none of it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def written_to(self) -> set[str]:
        """The runs that any request may have changed."""
        changing = ("UpsertBucket", "file_stream", "CreateRunFiles", "DeleteRun", "UpdateRunState")
        return {run for operation, run in self.asked if operation in changing}

    def graphql(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: C901 - one case for each operation
        """One operation's answer."""
        found = _OPERATION.search(body["query"])
        operation, given = found[2] if found else "?", body.get("variables") or {}
        if (odd := misfit(body["query"], given)) is not None:
            self.unknown.append(f"{operation}: {odd}")
        name = given.get("name") or given.get("run") or given.get("runName") or ""
        name = name or str(given.get("id") or "").removeprefix("id-")
        self.asked.append((operation, name))
        run = self.runs.get(name)
        if operation == self.deaf_to:
            raise ConnectionError(operation)
        match operation:
            case "Viewer" | "GetDefaultEntity":
                viewer = {"id": "1", "entity": "lab", "username": "someone", "email": "", "flags": "{}"}
                return {"viewer": viewer | {"teams": {"edges": []}, "apiKeys": {"edges": []}}}
            case "OrganizationCoreWeaveOrganizationID":
                return {"entity": {"organization": {"coreWeaveOrganizationId": None}}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "Run" | "RunHistoryKeys" | "RunState" | "RunFull":
                return {"project": {"run": run and run.told()}}
            case "RunResumeStatus":
                return {"model": {"name": "pretraining", "entity": {"name": "lab"}, "bucket": run and run.told()}}
            case "Runs" | "LightweightRuns" | "GetRuns" | "GetLightweightRuns":
                asked_for = json.loads(given.get("filters") or "{}")
                there = [one for one in self.runs.values() if _matches(one, asked_for)]
                edges = [{"node": one.told(), "cursor": one.name} for one in there]
                page = {"endCursor": None, "hasNextPage": False}
                return {
                    "project": {"internalId": "1", "runCount": len(there), "readOnly": False}
                    | {"runs": {"edges": edges, "pageInfo": page}}
                }
            case "RunParquetHistory":
                rows = [] if run is None else run.history
                return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": rows}}}}
            case "HistoryPage":
                low, high = int(given["minStep"]), int(given["maxStep"])
                rows = [json.dumps(row) for row in (run.history if run else ()) if low <= row["_step"] < high]
                return {"project": {"run": {"history": rows}}}
            case "UpsertBucket":
                inserted = name not in self.runs
                run = self.runs.setdefault(name, Run(name, state="running"))
                self._upsert(run, given)
                return {"upsertBucket": {"bucket": run.told(), "inserted": inserted}}
            case "RewindRun" if self.branches and run is not None and given["metricName"] == "_step":
                run.history = [row for row in run.history if row["_step"] <= given["metricValue"]]
                return {"rewindRun": {"rewoundRun": run.told()}}
            case "RewindRun":
                raise RefusedError(operation)
            case "CreateRunFiles":
                files = [{"name": f, "uploadUrl": f"{self.url}/upload/{f}"} for f in given["files"]]
                return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        self.unknown.append(body["query"])
        raise LookupError(operation)

    def file_stream(self, name: str, body: dict[str, Any]) -> None:
        """What the client appends to a run's files."""
        self.asked.append(("file_stream", name))
        run = self.runs[name]
        for file, content in (body.get("files") or {}).items():
            if "history" in file and not self.swallows:
                run.history += [json.loads(line) for line in content["content"]]
            if "summary" in file and content["content"]:
                run.summary = json.loads(content["content"][-1])
        if body.get("complete"):
            run.state = "finished"

    def _upsert(self, run: Run, given: dict[str, Any]) -> None:
        run.display_name = given.get("displayName") or given.get("display_name") or run.display_name
        run.notes = given.get("notes") or run.notes
        run.tags = given.get("tags") or run.tags
        run.group = given.get("groupName") or run.group
        run.job_type = given.get("jobType") or run.job_type
        run.config = json.loads(given.get("config") or json.dumps(run.config))
        point = run.config.get("_wandb", {}).get("value", {}).get("branch_point")
        if point and self.branches and not run.history:
            before = self.runs[point["run_id"]].history
            run.history = [row for row in before if row["_step"] <= point["step"]]
        run.summary = json.loads(given.get("summaryMetrics") or json.dumps(run.summary))


class RefusedError(LookupError):
    """An operation that this server knows and does not do."""


_SCALARS = {"String": str, "ID": str, "JSONString": str, "Boolean": bool, "Int": int, "Int64": int | str}


def misfit(query: str, given: dict[str, Any]) -> str | None:
    """What of the variables does not fit what the client's own query declares of them; None where all do. A variable
    more than declared fits, as by GraphQL's own rules: the client itself sends one."""
    head = query[: query.index("{")]
    declared = dict(re.findall(r"\$(\w+)\s*:\s*([\[\]!\w]+)", head))
    for name, kind in declared.items():
        value = given.get(name)
        if value is None:
            if kind.endswith("!") and "=" not in head:
                return f"{name} is {kind}, and was not given"
        elif kind.startswith("["):
            if not isinstance(value, list):
                return f"{name} is {kind}, not {value!r}"
        elif kind.startswith("Float"):
            if isinstance(value, bool) or not isinstance(value, int | float):
                return f"{name} is {kind}, not {value!r}"
        elif (wanted := _SCALARS.get(kind.rstrip("!"))) is not None and not isinstance(value, wanted):
            return f"{name} is {kind}, not {value!r}"
        elif kind.startswith("JSONString"):
            json.loads(value)
    return None


def _matches(run: Run, filters: Any) -> bool:
    """As far as the filters are ones on the display name; anything else matches."""
    if isinstance(filters, dict):
        if "display_name" in filters:
            return run.display_name == filters["display_name"]
        return all(_matches(run, each) for each in filters.values())
    return all(_matches(run, each) for each in filters) if isinstance(filters, list) else True


def _never_ends(handler: BaseHTTPRequestHandler, part: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    while True:
        handler.wfile.write(part)
        if len(part) == 1:
            time.sleep(0.05)


@contextmanager
def wandb_stub(*runs: Run) -> Iterator[Stub]:  # noqa: C901 - a handler and a server within
    """A running stub that has these runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stub.keys.add(base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()[4:])
            if stub.deaf or stub.refuses:
                return self.answer(503 if stub.deaf else 401, {})
            if self.path.startswith("/graphql"):
                operation = _OPERATION.search(json.loads(body)["query"])
                if operation is not None and operation[2] in (stub.drips_on, stub.floods_on):
                    return _never_ends(self, b" " if operation[2] == stub.drips_on else b" " * (1 << 16))
                try:
                    return self.answer(200, {"data": stub.graphql(json.loads(body))})
                except ConnectionError:
                    return self.answer(503, {})
                except LookupError as error:
                    return self.answer(200, {"data": None, "errors": [{"message": f"the stub has no {error}"}]})
            if self.path.endswith("/file_stream"):
                stub.file_stream(self.path.split("/")[-2], json.loads(body))
                return self.answer(200, {})
            return self.answer(404, {})

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.answer(200, {})

        def do_GET(self) -> None:
            self.answer(404, {})

        def answer(self, code: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """The client's service is gone at once when its process ends, in the middle of a connection."""

    server = Server(("127.0.0.1", 0), Handler)
    stub = Stub(server, {run.name: run for run in runs})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
