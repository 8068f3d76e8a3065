"""Which program wrote a log: the format that most of its first lines can be read as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sentinel.sources.blocks import Composer, FmsFsdp, Olmo
from sentinel.sources.finetuners import DlLogger, LitGpt, Mlx
from sentinel.sources.huggingface import HuggingFace
from sentinel.sources.json_lines import Fairseq, JsonLines, Metaseq
from sentinel.sources.line_reader import Decoder, LineReader
from sentinel.sources.megatron import GptNeox, Megatron
from sentinel.sources.nanotron_and_nemo import Nanotron, NeMo
from sentinel.sources.plain_steps import Generic, NanoGpt
from sentinel.sources.terse import LlmC
from sentinel.sources.torchtitan import Torchtitan
from sentinel.vocabulary.errors import ConfigError

__all__ = ["FORMATS", "Trial", "decoder_named", "recognise_lines"]

FORMATS: tuple[type[Decoder], ...] = (
    *(Nanotron, NeMo, GptNeox, Megatron, HuggingFace, Metaseq, Fairseq, Torchtitan, Olmo, Composer, LitGpt, DlLogger),
    *(Mlx, FmsFsdp, LlmC, NanoGpt, JsonLines, Generic),
)
"""Where two read the same number of lines, the earlier one is meant: the peculiar come first, `Generic` last."""

_ENOUGH = 2
"""Readings after which a format is known, while a log is followed."""

_ENOUGH_GENERIC = 10
"""The same for `Generic`: a format of its own may still turn up."""


_STRAY = 20
"""Where `Generic` reads so many times more lines than any format of its own, those were another program's."""


def decoder_named(name: str) -> type[Decoder]:
    """The format of that name. ConfigError lists the right ones."""
    found = next((decoder for decoder in FORMATS if decoder.name == name), None)
    if found is None:
        raise ConfigError(f"no log format is called {name!r}; there are {', '.join(d.name for d in FORMATS)}")
    return found


def recognise_lines(head: Iterable[str]) -> type[Decoder] | None:
    """The format that reads most of the lines; None where none reads any."""
    trial = Trial()
    for line in head:
        trial.feed(line)
    return trial.best


class Trial:
    """All formats, tried side by side."""

    def __init__(self) -> None:
        self._readers = [(decoder, LineReader(decoder())) for decoder in FORMATS]

    def feed(self, line: str) -> None:
        """Tries the line."""
        for _, reader in self._readers:
            reader.feed(line)

    @property
    def best(self) -> type[Decoder] | None:
        """The format that has read most so far; None while none has read any."""
        for _, reader in self._readers:
            reader.end()  # a block that is open counts
        *specific, generic = self._readers
        decoder, reader = max(specific, key=lambda each: each[1].readings)
        if reader.readings and generic[1].readings <= _STRAY * reader.readings:
            return decoder
        if generic[1].readings:
            return Generic
        decoder, reader = max(specific, key=lambda each: each[1].unreadable)
        return decoder if reader.unreadable else None  # every line of it is cut

    @property
    def has_read(self) -> bool:
        """Whether any format has read a step's readings."""
        return any(reader.readings for _, reader in self._readers)

    @property
    def decided(self) -> bool:
        """Whether enough was read to stop trying."""
        return any(
            reader.readings >= (_ENOUGH_GENERIC if decoder is Generic else _ENOUGH) for decoder, reader in self._readers
        )


def unknown(path: object, tried: Sequence[type[Decoder]] = FORMATS) -> ConfigError:
    """The error for a log that nothing is recognised in."""
    names = ", ".join(d.name for d in tried)
    return ConfigError(
        f"{path}: no line of it is a training step in any format that is known ({names}): a line, or the lines below a "
        "header, should have the step and the training loss, as in `step 10 loss 3.2`; the first 200,000 lines (64 MiB "
        "of them) are looked at"
    )
