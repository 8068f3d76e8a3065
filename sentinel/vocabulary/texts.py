"""Texts of others (a log's lines, labels, names of folders, reasons) on their way to a person: what would steer a
terminal, a browser or a chat program is shown as characters that do nothing."""

from __future__ import annotations

import re
from typing import Any

# Control characters but newline and tab, the marks that turn the direction of a text, line separators of Unicode, and
# halves of a pair, which no terminal takes.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_TAG = re.compile(r"<(?=[A-Za-z!/?@#])")
_MENTION = re.compile(r"@(?=everyone\b|here\b|channel\b|all\b)", re.IGNORECASE)
# Names behind which a secret stands, and what looks like a key of a service that trainers log to.
_SECRET_NAME = re.compile(
    r"(?:api[_-]?key|authorization|passw(?:or)?d|secret(?:[_-]?key)?|(?:^|[_-])token)$", re.IGNORECASE
)
_SECRET = re.compile(
    r"(?P<name>(?:api[_-]?key|authorization|passw(?:or)?d|secret(?:[_-]?key)?|[_-]token)[\"']?\s*[:=]\s*[\"']?"
    r"(?:bearer\s+|basic\s+)?)[^\s\"',;]+"
    r"|(?P<user>://[^\s/:@]*:)[^\s/@]+(?=@)"
    r"|\b(?:hf_|gh[pousr]_|github_pat_|glsa_|sk-|xox[abprs]-|AKIA|eyJ)[\w.-]{12,}",
    re.IGNORECASE,
)
_MARKDOWN = re.compile(r"[\\`\[|]")


def neutral(text: str) -> str:
    """The text without a control character but newline and tab; each other is shown as its escape, `\\x1b`."""
    return _STEERING.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def neutral_in(value: Any) -> Any:
    """The same in all texts of a JSON value, keys too."""
    if isinstance(value, str):
        return neutral(value)
    if isinstance(value, dict):
        return {neutral(str(key)): neutral_in(item) for key, item in value.items()}
    return [neutral_in(item) for item in value] if isinstance(value, list | tuple) else value


def without_secrets(value: Any) -> Any:
    """A JSON value with `***` for what stands behind a secret's name, as a key or in a text, and for what looks like a
    key of a service that trainers log to. Digests stay: they are compared."""
    if isinstance(value, str):
        return _SECRET.sub(lambda found: f"{found['name'] or found['user'] or ''}***", value)
    if isinstance(value, dict):
        hidden = {key for key, item in value.items() if isinstance(item, str) and item and _SECRET_NAME.search(key)}
        return {key: "***" if key in hidden else without_secrets(item) for key, item in value.items()}
    return [without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def for_people(text: str) -> str:
    """For mail and chat: neutral, and neither HTML, nor a link or command of a chat program, nor a call of all who are
    in a room. `3 < 4` stays as it is."""
    return _MENTION.sub("(at)", _TAG.sub("\u2039", neutral(text)))


def markdown(text: str) -> str:
    """For one line or cell of a Markdown page: neutral, and neither HTML, nor a link, a picture or code."""
    line = " ".join(neutral(text).split("\n")).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", line)
