"""A /metrics server, and a scrape of it."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from sentinel.adapters.exposition.server import Server
from sentinel.adapters.exposition.settings import Metrics


@contextmanager
def serving(**settings: Any) -> Iterator[Server]:
    registry = CollectorRegistry()
    Gauge("sentinel_paused", "1 while a person has paused the run, else 0.", registry=registry)
    server = Server(make_wsgi_app(registry), Metrics(**settings))
    try:
        yield server
    finally:
        server.close()


def scrape(server: Server, tls: Path | None = None, **headers: str) -> tuple[int, str]:
    """The answer's status and text; `tls`: by HTTPS, with this as the only authority that is trusted."""
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    else:
        trusting = ssl.create_default_context(cafile=str(tls))
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=60, context=trusting)
    with closing(connection):
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
