"""`sentinel ui`: serves the triage page live."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from sentinel.adapters.exposition.server import SHORTEST_TOKEN, TlsCertificate, is_loopback
from sentinel.adapters.paging.secret import Secret
from sentinel.cli.shared import RUNS, ConfigDir, Run, Texts, echo
from sentinel.cli.triage import documents
from sentinel.config.run_files import find_config, state_dir_of
from sentinel.daemon.sources import source_of
from sentinel.reports.triage.server import Feed, TriageServer
from sentinel.vocabulary.errors import ConfigError


def ui(
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    host: Annotated[str, typer.Option(help="Address to listen on; outside this machine a token is required.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8650,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token to require; default: a random one where one is required.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate and its chain: serve HTTPS only.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file with the key, if it is in a file of its own.")] = None,
    texts: Texts = None,
) -> int:
    """Prints the address to open in a browser, and serves until Ctrl-C."""
    config = find_config(run, config_dir)
    tls, token = certificate_of(certificate, key), None
    if token_file is not None:
        token = Secret(what="token", env=None, file=token_file, environ={}).read()
        if len(token) < SHORTEST_TOKEN:
            raise ConfigError(f"the token in {token_file} is shorter than {SHORTEST_TOKEN} characters")
    elif not is_loopback(host):
        token = secrets.token_urlsafe(24)
    state_dir = state_dir_of(config)
    feed = Feed(source_of(config, state_dir), state_dir / "incidents.jsonl")
    document = documents(config, run, config_dir, texts)
    try:
        server = TriageServer((host, port), feed, lambda: document(None), token, tls)
    except OSError as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror or error}") from error
    server.follow(min(config.watch.poll_interval_s, 2.0))
    address, scheme = server.server_address, "http" if tls is None else "https"
    query = f"?token={token}" if token is not None and token_file is None else ""
    echo(f"{scheme}://{address[0]!s}:{address[1]}/{query}")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def certificate_of(certificate: Path | None, key: Path | None) -> TlsCertificate | None:
    """The certificate in the files; None where no file is given. ConfigError says which file can't be used."""
    if certificate is not None:
        return TlsCertificate(certificate, key)
    if key is not None:
        raise ConfigError("--key needs --certificate")
    return None
