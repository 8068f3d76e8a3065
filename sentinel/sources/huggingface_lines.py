"""A Python dict on a line, as Hugging Face's Trainer logs it."""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from sentinel.sources.alike_lines import AlikeLines
from sentinel.sources.line_events import Decoder, Evaluated, Event, LineReading, ProgramEnded, ProgramStarted, fields_of
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.sources.two_jobs import TwoJobs
from sentinel.vocabulary.errors import LineError

# Newer versions write the numbers as texts; numpy's and torch's show what they are.
_PYTHON_PAIR = re.compile(
    r"""['"]([\w/ .-]{1,80})['"]\s*:\s*"""
    r"""(?:(?:np\.|numpy\.|torch\.)?(?:float(?:16|32|64)|tensor)\()?['"]?([^\s'",}{)]+)"""
)
# transformers 5, and 4: `Continuing training from global step 10`.
_RESUMED = re.compile(
    r"\b(?:Resuming training from checkpoint with epoch \d+ and|Continuing training from) global step (\d{1,15})"
)
_OTHER_LOGGERS = 8  # readings among which the same step of another logger is looked for
_ROUNDED = {"loss": 6e-5, "epoch": 6e-3}  # LLaMA-Factory prints four digits of a loss, two of an epoch
_LONGEST_OPEN = 4_000  # characters of a dict over several lines that are waited for


class HuggingFace(Decoder):
    """Hugging Face's Trainer: one Python dict a line, without the step.

    `{'loss': 1.36, 'grad_norm': 0.24, 'learning_rate': 5e-05, 'epoch': 0.01}`. The lines are counted: one line is one
    step here, whatever `logging_steps` was. Where the epoch goes back, the run was resumed: counting goes on after the
    last line of an earlier epoch. The epoch is rounded, and a restart may begin with the last one: it is told by what
    Trainer logs at INFO, and by the end before it. Each node writes these lines, some of them late: a start is certain
    where the epoch does not grow, or another global step is resumed than before. A loss that is exactly 0.0
    beside a grad norm of nan is nan: the Trainer shows it so.
    """

    takes_columns = True
    words = ("{", "Running training *****", "global step")

    def __init__(self) -> None:
        self.note = "the lines name no step: they are counted, so a step here is one logged line"
        self._epochs = array("d")
        self._count = 0
        self.jobs = TwoJobs("epochs", repeats=True)
        # The newest readings, each with the names beside them: LLaMA-Factory logs each step a second time, rounded.
        self._newest: deque[tuple[frozenset[str], dict[str, float]]] = deque(maxlen=_OTHER_LOGGERS)
        self._again = 0
        self._last = ""
        self._ended = self._announced = False  # since the last reading: the run's end, a start
        self._resumed_step: int | None = None  # the global step that a start named last
        self._began_at: int | None = None  # the same, of the attempt under way
        self._open = ""  # the beginning of a dict that goes on on the next line

    @property
    def within(self) -> bool:  # type: ignore[override]
        return bool(self._open)

    def is_plain(self, line: str) -> bool:
        return line.count("{") == 1

    def steps_of(self, lines: AlikeLines) -> Sequence[int] | None:
        texts = [self._last, *(line[line.find("{") :] for line in lines.lines)]
        of_one_logger = {names for names, _ in self._newest} == {_names_in(texts[-1])}
        again = any(text == last for last, text in pairwise(texts))
        if again or self._ended or self._announced or not of_one_logger:
            return None
        epochs, steps = lines.column("epoch"), lines.column("step")
        if steps[0] is not None:
            return steps
        grows = epochs[0] is not None and self.jobs.go_on(epochs, None)
        if not grows or any(epoch < last for last, epoch in pairwise([*self._epochs[-1:], *epochs])):
            return None
        return range(self._count + 1, self._count + 1 + len(lines))

    def pass_over(self, lines: AlikeLines, steps: Sequence[int]) -> None:
        text = lines.lines[-1]
        self._last, self._began_at = text[text.find("{") :], self._resumed_step
        columns = {name: lines.column(name) for name in ("loss", "epoch", "lr")}
        names = _names_in(self._last)
        for at in range(-min(len(lines), _OTHER_LOGGERS), 0):
            numbers = {name: column[at] for name, column in columns.items() if column[at] is not None}
            self._newest.append((names, numbers))
        if lines.column("step")[0] is None:
            self.jobs.take_all(columns["epoch"], columns["loss"][-1])
            self._epochs.extend(columns["epoch"])
            self._count = steps[-1]

    def decode(self, line: str) -> Sequence[Event] | None:
        """The events of one dict, or of several between the pieces of a progress bar."""
        if self._open:
            joined, self._open = f"{self._open} {line.strip()}", ""
            if line.lstrip().startswith(("'", '"', "}")) and len(joined) <= _LONGEST_OPEN:
                line = joined
        pieces = [line]
        if line.count("{") > 1 and "'loss'" in line:
            pieces = [piece + "}" for piece in line.split("}")]
            pieces[-1] = pieces[-1][:-1]
        found = [events for piece in pieces if (events := self._of_one(piece)) is not None]
        return [event for events in found for event in events] if found else None

    def _of_one(self, line: str) -> Sequence[Event] | None:
        begin = line.find("{")
        if begin < 0 and ("Running training *****" in line or "global step" in line):
            resumed = _RESUMED.search(line)
            self._resumed_step = self._resumed_step if resumed is None else whole(resumed[1])
            self._announced = self._announced or resumed is not None or "*****" in line
            return None
        if begin >= 0 and '"learning_rate"' in line and '"step"' not in line:
            line = line.replace('"', "'")
        if begin >= 0 and line.rstrip().endswith(",") and "'" in line[begin : begin + 2] and "}" not in line:
            self._open = line
            return ()
        if begin < 0 or "loss'" not in line or ("'epoch'" not in line and "'learning_rate'" not in line):
            if begin >= 0 and "'loss'" in line and line.lstrip().startswith("{"):
                raise LineError("cut before its epoch or learning rate")
            return None
        if "}" not in line[begin:]:
            raise LineError("cut before its end")
        values = dict(_PYTHON_PAIR.findall(line, begin))
        head = line[:begin]
        at = time_of(head)
        if "train_runtime" in values:
            self._ended = True
            return (ProgramEnded(time_unix_s=at),)
        if "loss" not in values:
            evaluated = next((number(text) for name, text in values.items() if name.endswith("eval_loss")), None)
            return None if evaluated is None else (Evaluated(loss=evaluated, time_unix_s=at),)
        return self._reading(values, line[begin:], head, at)

    def _reading(self, values: dict[str, str], text: str, head: str, at: float) -> Sequence[Event] | None:
        pairs = ((name, text.partition("/")[0]) for name, text in values.items())
        fields = {"time_unix_s": at} | fields_of(pairs, self.names)
        if "loss" not in fields:  # another one is asked for
            return None
        norm, step, loss = fields.get("grad_norm"), fields.pop("step", None), fields.pop("loss")
        if loss is None:
            raise LineError("a loss that is not a number")
        if loss == 0.0 and norm is not None and not math.isfinite(norm):
            loss = math.nan
        epoch, resumed = fields.get("epoch"), self._announced and self._resumed_step != self._began_at
        if text == self._last and not resumed:
            return ()  # another rank's
        if not self._announced and self._is_of_another_logger(values, loss, fields):
            self._again += 1
            return ()
        behind = bool(self._epochs) and epoch is not None and epoch <= self._epochs[-1]
        starts = self._ended or resumed or (self._announced and behind)
        self._last, self._began_at = text, self._resumed_step
        self._ended = self._announced = False
        if step is not None:
            self.note = ""
            reading = LineReading(step, loss, rank_of(head), fields)
            facts = {"resumed_from": self._resumed_step} if resumed else {}
            return (ProgramStarted(facts=facts, certain=True, time_unix_s=at), reading) if starts else (reading,)
        if epoch is not None and math.isfinite(epoch):
            self.jobs.take(epoch, loss, None, announced=starts)
        before, step = self._count, self._counted(epoch, again=starts)
        reading = LineReading(step, loss, rank_of(head), fields)
        if before == 0 or (step > before and not starts):
            return (reading,)
        return (ProgramStarted(facts={"resumed_from": step - 1 or None}, certain=True, time_unix_s=at), reading)

    def _is_of_another_logger(self, values: Mapping[str, str], loss: float, fields: Mapping[str, float | None]) -> bool:
        """Whether a line with other names beside them has had these numbers, before they were rounded or after."""
        names = frozenset(values)
        numbers = {"loss": loss} | {name: value for name in ("epoch", "lr") if (value := fields.get(name)) is not None}
        for others, known in self._newest:
            near = all(
                abs(numbers[name] - known[name]) <= _ROUNDED.get(name, 1e-3 * abs(known[name]))
                for name in numbers.keys() & known.keys()
            )
            if names != others and near and numbers.keys() == known.keys() and len(numbers) == 3:
                return True
        self._newest.append((names, numbers))
        return False

    @property
    def notes(self) -> list[str]:
        again = f"{self._again} lines show a step once more, rounded, as another logger writes it: left out"
        return [*super().notes, *([again] if self._again else [])]

    def _counted(self, epoch: float | None, *, again: bool) -> int:
        """The line's number; `again`: one of this epoch is there already, and is replaced."""
        if epoch is not None and math.isfinite(epoch):
            if self._epochs and (epoch < self._epochs[-1] or (again and epoch == self._epochs[-1])):
                self._count = bisect_left(self._epochs, epoch)
                del self._epochs[self._count :]
            self._epochs.append(epoch)
        elif self._epochs:
            self._epochs.append(self._epochs[-1])
        self._count += 1
        return self._count


def _names_in(text: str) -> frozenset[str]:
    return frozenset(name for name, _ in _PYTHON_PAIR.findall(text))
