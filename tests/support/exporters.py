"""An exporter that serves, and a client that scrapes it."""

from __future__ import annotations

import base64
import http.client
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sentinel.vocabulary.sample import LayerVariance, Sample
from trainer_hooks.export.exporter import Exporter, ExporterSettings
from trainer_hooks.export.step_collector import StepCollector

OPENSSL = shutil.which("openssl") or "openssl"
EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def collector(layers: Callable[[], LayerVariance | None] = lambda: None) -> StepCollector:
    made = StepCollector("tr8", 1, layers=layers, most_layers=1_000)
    made.push(Sample(attempt=1, global_step=7, time_unix_s=1.0, loss=7.0, lr=0.5))
    return made


@contextmanager
def serving(steps: StepCollector | None = None, **settings: object) -> Iterator[tuple[Exporter, list[Exception]]]:
    failed: list[Exception] = []
    exporter = Exporter(steps or collector(), ExporterSettings(**settings), failed=failed.append)  # type: ignore[arg-type]
    try:
        yield exporter, failed
    finally:
        exporter.close()


def scrape(
    exporter: Exporter,
    path: str = "/metrics",
    *,
    method: str = "GET",
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[http.client.HTTPResponse, bytes]:
    """Headers by their names with `_` for `-`."""
    host = "::1" if ":" in exporter.address else "127.0.0.1"
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection(host, exporter.port, timeout=60)
    else:
        connection = http.client.HTTPSConnection(host, exporter.port, timeout=60, context=tls)
    with closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """first.pem and second.pem with their keys, and first's key encrypted."""
    folder = tmp_path_factory.mktemp("keys")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"
    for name in ("first", "second"):
        where = ("-addext", names, "-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", *EC_KEY, "-nodes", "-days", "30", "-subj", f"/CN={name}", *where, cwd=folder)
    openssl("ec", "-aes128", "-passout", "pass:secret", "-in", "first.key", "-out", "encrypted.key", cwd=folder)
    return folder


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run([OPENSSL, *arguments], cwd=cwd, check=True, capture_output=True, timeout=60)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
