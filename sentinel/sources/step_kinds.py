"""Which of several kinds of step lines in a log is the training loop's.

A kind is the word before the step, the name of the loss, and whether a validation loss stands beside it. Of kinds that
differ in rank (`batch` behind `step`, an average behind the loss) the better one is taken and the other left out. Kinds
of one rank, and lines with a validation loss beside the others, are one series as long as the steps go on from one line
to the next. Where they do not (an evaluation that repeats a step), the lines with a validation loss are left out, and
without such lines the log can be read in two ways.
"""

from __future__ import annotations

from typing import NamedTuple

_WORDS = {"batch": 1, "bar": 2}  # behind `step`, `iter` and the like; a bar is drawn beside the lines of a log
_MOST = 50  # kinds; a log with more of them has no words that stay the same


class Kind(NamedTuple):
    """A kind of step line; the smaller of two kinds is preferred."""

    evaluates: bool  # a validation loss stands beside the training loss
    loss_rank: int  # place of the loss's name among those of a training loss
    word: str  # before the step, in small letters
    loss: str  # the name of the loss

    @property
    def rank(self) -> tuple[int, int]:
        return _WORDS.get(self.word, 0), self.loss_rank

    def __str__(self) -> str:
        beside = " beside a validation loss" if self.evaluates else ""
        return f"`{self.word or 'N'} … {self.loss}`{beside}"


class StepKinds:
    def __init__(self) -> None:
        self.left_out: dict[Kind, int] = {}  # lines of each kind that are not the training loop's
        self.problem = ""  # why no kind can be preferred; a sentence, or empty
        self.displaced = ""  # the same for lines that were taken before a better kind came
        self._last: dict[Kind, int] = {}  # newest step of each kind
        self._newest = -1
        self._same: Kind | None = None  # kind of the line before, and its step
        self._same_step = -1

    def take(self, kind: Kind, step: int) -> bool:
        """Whether a line of this kind is a training step."""
        if kind is self._same and step > self._newest:  # nearly every line
            self._newest = self._same_step = step
            return True
        if self._same is not None:
            self._last[self._same], self._same = self._same_step, None
        if kind in self.left_out:
            self.left_out[kind] += 1
            return False
        last = self._last.get(kind)
        if last is None:
            for other in [other for other in self._last if other.rank != kind.rank]:
                if not self._prefers(kind, other, step):
                    return False
        if step <= self._newest and (last is None or step > last):
            rival = next((each for each, at in self._last.items() if each != kind and at >= step), None)
            if rival is not None and not self._prefers(kind, rival, step):
                return False
        if last is not None and step < last:  # the run was restarted
            self._last.clear()
            self._newest = -1
        if len(self._last) < _MOST or kind in self._last:
            self._last[kind] = step
            self._same, self._same_step = kind, step
        self._newest = max(self._newest, step)
        return True

    def _prefers(self, kind: Kind, rival: Kind, step: int) -> bool:
        if (kind.rank, kind.evaluates) == (rival.rank, rival.evaluates):
            by = f"loss={kind.loss}" if kind.loss != rival.loss else f"step={kind.word}"
            self.problem = (
                f"two kinds of lines have step {step}: {rival} and {kind}, and both may be the training steps; "
                f"say which with --column {by}"
            )
            self.left_out[kind] = 1
            return False
        worse = max(kind, rival, key=lambda each: (each.rank, each.evaluates))
        self.left_out[worse] = int(worse is kind)
        if self._last.pop(worse, None) is not None:
            self._newest = max(self._last.values(), default=-1)
            self.displaced = (
                f"{worse} was read for the training steps until {kind if worse is rival else rival} came; say which "
                "they are with --column step=WORD or loss=NAME"
            )
        return worse is not kind

    @property
    def note(self) -> str:
        """What was left out, as a sentence; empty where nothing was."""
        kinds = [f"{count} lines {kind}" for kind, count in self.left_out.items() if count]
        return f"left out, since other lines are the training steps: {', '.join(kinds)}" if kinds else ""

    def afresh(self) -> StepKinds:
        """For another reading of the log, with what is known of its kinds."""
        other = StepKinds()
        other.left_out = dict.fromkeys(self.left_out, 0)
        return other
