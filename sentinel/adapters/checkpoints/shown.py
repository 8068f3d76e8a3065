"""A file's name in a sentence, whatever is in it."""

from __future__ import annotations

__all__ = ["shown"]

_LONGEST = 200


def shown(name: str) -> str:
    """The name as it is where it is plain; else quoted and escaped: a newline in a name must not forge a log line."""
    plain = name.isascii() and name.isprintable() and not set(name) & set("\"'`;|&$<>")
    text = name if plain and name == name.strip() and name else ascii(name)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
