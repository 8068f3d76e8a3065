"""How a batch gets shorter while the sequence length warms up."""

from __future__ import annotations

from typing import Literal, get_args

from sentinel.vocabulary.errors import ConfigError

# truncate: the first tokens of each sample, the rest is lost (seqtru). reshape: more, shorter samples of the same
# tokens (seqres), and what does not fill one is lost. *_keep: the same, and what would be lost is recorded and trained
# on later.
Shortening = Literal["truncate", "reshape", "truncate_keep", "reshape_keep"]


def shortening(told: object) -> Shortening | None:
    """What JSON named; None for none. ConfigError lists the right ones."""
    for known in get_args(Shortening):
        if told == known:
            return known  # type: ignore[no-any-return]
    if told is None:
        return None
    raise ConfigError(f"batches are shortened by one of {', '.join(get_args(Shortening))}, not by {told!r}")
