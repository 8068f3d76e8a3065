"""Names: texts from a person or a file (a run's name, an incident's id, a tag) that become one component of a path."""

from __future__ import annotations

from sentinel.vocabulary.errors import ConfigError

LONGEST_NAME_BYTES = 128  # In UTF-8. A file's name may have 255 bytes, and what is written beside one adds to its name.
_LONGEST_PATH_BYTES = 4095
_LONGEST_COMPONENT_BYTES = 255
_SHOWN = 60
_LONGEST_SHOWN = 200


def why_not_a_name(text: str) -> str | None:
    """Why the text can't be a name, as the end of a sentence that begins with it; None where it can."""
    if not text:
        return "is empty"
    if "/" in text or text in (".", ".."):
        return "is a path: a name has no / in it"
    if text[0] in ".-":
        return "begins with a dot or a dash"
    if not text.isprintable():
        return "holds a character that can't be printed"
    if text != text.strip():
        return "begins or ends with a space"
    if (size := len(text.encode())) > LONGEST_NAME_BYTES:
        return f"has {size} bytes: the limit is {LONGEST_NAME_BYTES}"
    return None


def checked_name(text: object, what: str) -> str:
    """The text, where it is a name; `what` is what the error calls it. ConfigError."""
    if not isinstance(text, str):
        raise ConfigError(f"{what} should be a name, not {_shown(text)}")
    if (why := why_not_a_name(text)) is not None:
        raise ConfigError(f"{what}: {_shown(text)} {why}")
    return text


def checked_path_text(text: str, what: str) -> str:
    """The text, where a path of this operating system can be called so. ConfigError."""
    if "\0" in text:
        raise ConfigError(f"{what}: {_shown(text)} holds a NUL byte, which no path can have")
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) > _LONGEST_PATH_BYTES or max(map(len, encoded.split(b"/"))) > _LONGEST_COMPONENT_BYTES:
        raise ConfigError(
            f"{what}: {_shown(text)} is too long: a path may have {_LONGEST_PATH_BYTES} bytes, "
            f"and each part of it {_LONGEST_COMPONENT_BYTES}"
        )
    return text


def _shown(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def shown(name: str) -> str:
    """The name as it is where it is plain; else quoted and escaped: a newline in a name must not forge a log line."""
    plain = name.isascii() and name.isprintable() and not set(name) & set("\"'`;|&$<>")
    text = name if plain and name == name.strip() and name else ascii(name)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
