"""/metrics of the watch beyond this machine: TLS and a token, by real scrapes and by a real Prometheus."""

from __future__ import annotations

import http.client
import json
import logging
import shutil
import socket
import ssl
from pathlib import Path

import pytest

from sentinel.adapters.exposition.exposition import Exposition
from sentinel.adapters.exposition.server import TlsCertificate, Token
from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.exposition.text import RunWriter
from sentinel.config import load_config
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.metrics import Shown
from tests.adapters.pagers import certificate_for_localhost, until
from tests.adapters.prometheus_asked import Asked, prometheus
from tests.support.scraping import scrape, serving

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of these tests alone


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates for localhost of our own making, each its own authority, each with its key."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("first", "second"):
        made = folder / f"{name}-made"
        made.mkdir()
        certificate, key = certificate_for_localhost(made)
        certificate.rename(folder / f"{name}.pem")
        key.rename(folder / f"{name}.key")
    return folder


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


def test_with_a_certificate_it_speaks_https_and_nothing_else(keys: Path) -> None:
    with serving(certificate=keys / "first.pem", key=keys / "first.key") as server:
        status, text = scrape(server, keys / "first.pem")
        assert (status, "sentinel_paused" in text) == (200, True)
        with pytest.raises((OSError, http.client.HTTPException)):
            scrape(server)
        with pytest.raises(ssl.SSLCertVerificationError):
            scrape(server, keys / "second.pem")


def test_a_key_may_be_in_the_certificates_file(keys: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text((keys / "first.pem").read_text() + (keys / "first.key").read_text())
    with serving(certificate=both) as server:
        assert scrape(server, keys / "first.pem")[0] == 200


def test_versions_of_tls_that_are_broken_are_not_spoken(keys: Path) -> None:
    context = TlsCertificate(keys / "first.pem", keys / "first.key").context()
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_renewed_certificate_is_taken_up_and_half_of_one_is_waited_out(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(keys / "first.pem", certificate)
    shutil.copy(keys / "first.key", key)
    with serving(certificate=certificate, key=key) as server, caplog.at_level(logging.WARNING):
        assert scrape(server, keys / "first.pem")[0] == 200
        shutil.copy(keys / "second.pem", tmp_path / "new")
        (tmp_path / "new").replace(certificate)  # its key is yet to come
        assert scrape(server, keys / "first.pem")[0] == scrape(server, keys / "first.pem")[0] == 200
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert str(certificate) in said[0]
        assert "the one before it still serves" in said[0]
        shutil.copy(keys / "second.key", tmp_path / "new")
        (tmp_path / "new").replace(key)
        assert scrape(server, keys / "second.pem")[0] == 200
        certificate.unlink()
        assert scrape(server, keys / "second.pem")[0] == 200


def test_who_shakes_no_hands_holds_up_nobody(keys: Path) -> None:
    with serving(certificate=keys / "first.pem", key=keys / "first.key") as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
        assert scrape(server, keys / "first.pem")[0] == 200
        for connection in silent:
            connection.close()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (TOKEN, 401),
        ("Bearer ", 401),
        ("Bearer \xe9\xff", 401),
        (None, 401),
    ],
)
def test_only_who_brings_the_token_is_shown_anything(token_file: Path, header: str | None, status: int) -> None:
    with serving(token_file=token_file) as server:
        told, text = scrape(server, **({} if header is None else {"Authorization": header}))
    assert told == status
    assert ("sentinel_paused" in text) == (status == 200)
    assert TOKEN not in text


def test_a_changed_token_counts_at_once_and_none_lets_nobody_in(
    token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(token_file=token_file) as server, caplog.at_level(logging.WARNING):
        assert scrape(server, Authorization=f"Bearer {TOKEN}")[0] == 200
        token_file.write_text("another-token-than-before")
        assert scrape(server, Authorization=f"Bearer {TOKEN}")[0] == 401
        assert scrape(server, Authorization="Bearer another-token-than-before")[0] == 200
        token_file.unlink()
        assert scrape(server, Authorization="Bearer another-token-than-before")[0] == 401
        assert scrape(server)[0] == 401
    (said,) = [record.getMessage() for record in caplog.records]
    assert str(token_file) in said


def test_the_token_is_in_no_log_no_error_and_no_repr(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), serving(token_file=token_file, address="0.0.0.0") as server:  # noqa: S104
        scrape(server, Authorization=f"Bearer {TOKEN}")
        scrape(server, Authorization=f"Basic {TOKEN}")
    assert "travels in the clear" in caplog.text
    assert TOKEN not in caplog.text + repr(Token(token_file)) + repr(vars(Token(token_file)))
    token_file.write_text(f"{TOKEN}\n{TOKEN}")
    with pytest.raises(ConfigError) as refused:
        Token(token_file)
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("text", ["", "\n", "fifteen-letters", "sixteen-but-a-\t-in-it", "two lines\nin one file"])
def test_a_token_that_would_not_do_is_refused_with_the_name_of_its_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"token_file: .*/token .*should hold"):
        Token(file)
    file.write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(ConfigError, match=r"token_file: .*/token can.t be read: byte 0 is not UTF-8"):
        Token(file)


def test_what_cannot_be_used_is_refused_with_the_names_of_the_files(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"certificate: .*/away\.pem can't be read: No such file"):
        TlsCertificate(tmp_path / "away.pem")
    with pytest.raises(ConfigError, match=r"key: .*/away\.key can't be read: No such file"):
        TlsCertificate(keys / "first.pem", tmp_path / "away.key")
    with pytest.raises(ConfigError, match=r"first\.pem and the key .*second\.key can't be used together: KEY_VALUES"):
        TlsCertificate(keys / "first.pem", keys / "second.key")
    with pytest.raises(ConfigError, match=r"first\.pem and the key .*first\.pem can't be used together"):
        TlsCertificate(keys / "first.pem")
    with pytest.raises(ConfigError, match="a key is of no use without its certificate"):
        Metrics(key=keys / "first.key")


@pytest.mark.parametrize("wrong", [{"certificate": Path("/away.pem")}, {"token_file": Path("/away")}])
def test_what_is_wrong_costs_the_metrics_and_not_the_watch_and_nothing_is_served_without_it(
    tmp_path: Path, wrong: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    exposition = Exposition(Metrics(**wrong), tmp_path / "scrape-watch.json", {"run": "tr8"})
    exposition.open()
    assert exposition.server is None
    exposition.show("tr8", RunWriter().write(()))
    exposition.close(well=True)
    assert str(*wrong.values()) in caplog.text


def test_paths_are_taken_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    tables = '[run]\nname = "tr8"\ncheckpoints = "c"\n[launcher]\nkind = "elsewhere"\n'
    (tmp_path / "tr8.toml").write_text(
        tables + '[metrics]\ncertificate = "tls.crt"\nkey = "/etc/tls.key"\ntoken_file = "token"\n'
    )
    metrics = load_config(tmp_path / "tr8.toml").metrics
    assert (metrics.certificate, metrics.key) == (tmp_path / "tls.crt", Path("/etc/tls.key"))
    assert metrics.token_file == tmp_path / "token"


def refusals(asked: Asked) -> dict[str, str]:
    """{job: what its last scrape came to}."""
    found = asked.get("targets") or {"activeTargets": []}
    return {"no-token": "", "no-trust": ""} | {t["labels"]["job"]: t["lastError"] for t in found["activeTargets"]}


@pytest.mark.full
def test_a_prometheus_that_trusts_the_authority_and_has_the_token_finds_it_by_its_announcement(
    keys: Path, token_file: Path, tmp_path: Path
) -> None:
    settings = Metrics(
        certificate=keys / "first.pem", key=keys / "first.key", token_file=token_file, announce="localhost"
    )
    announced = tmp_path / "scrape-watch.json"
    exposition = Exposition(settings, announced, {"run": "tr8"})
    exposition.open()
    assert json.loads(announced.read_text())[0]["labels"]["__scheme__"] == "https"
    trusting, bringing = f"tls_config: {{ca_file: {keys / 'first.pem'}}}", f"credentials_file: {token_file}"
    jobs = {
        "both": f"{trusting}, authorization: {{{bringing}}}",
        "no-token": trusting,
        "no-trust": f"authorization: {{{bringing}}}",
    }
    lines = [
        f"  - {{job_name: {name}, file_sd_configs: [{{files: ['{announced}']}}], {more}}}"
        for name, more in jobs.items()
    ]
    configuration = "global: {scrape_interval: 1s}\nscrape_configs:\n" + "\n".join(lines) + "\n"
    try:
        exposition.show("tr8", RunWriter().write([Shown("sentinel_paused", 1.0, ("tr8",))]))
        with prometheus(tmp_path, configuration) as asked:
            until(lambda: asked.query('sentinel_paused{job="both", run="tr8", component="watch"} == 1'))
            until(lambda: {one["metric"]["job"] for one in asked.query("up == 0")} == {"no-token", "no-trust"})
            until(lambda: "401" in refusals(asked)["no-token"])
            until(lambda: "certificate" in refusals(asked)["no-trust"])
    finally:
        exposition.close(well=True)
    assert TOKEN not in announced.read_text()
