"""The step that a line of any trainer names: by a word, by its place, or within an epoch, which begins again."""

from __future__ import annotations

import re

from sentinel.sources.line_text import whole

_STEP = re.compile(
    r"(?:^|[\s\[(|,{'\":])(global[_ ]?)?(steps?|iterations?|iter|num_updates|update|batch)(?:\(train\))?['\"]?"
    r"\s*[:=#]?\s*\[?\s*(\d[\d,]*(?:K\b)?)(?:\.0+)?(?!\.?\d|%)(?:\s*(?:/|of)\s*(\d[\d,]*))?",
    re.IGNORECASE,
)
_IN_EPOCH = re.compile(r"\bepoch(?:\(train\))?:?\s*\[?\d+\]?.{0,200}?[\[|]\s*(\d+)/(\d+)(?=\]| \[\d)", re.IGNORECASE)
"""`Epoch(train) [100][3200/4309]`, `Epoch: [0]  [340/1504]`, a progress bar's `Epoch 0: 1%|# | 340/1504 [00:10<`."""

_AFTER_EPOCH = re.compile(r"\bepoch:?\s*\[?\d+(?:/\d+)?\]?\s*[:,|-]?\s+(\d+) ?/ ?(\d+)(?!\s*[/%:.\d])", re.IGNORECASE)
"""`| epoch 010  2000 / 8223 loss=1.2`, `Epoch  1, 2000/8223; xent: 1.2`, `| epoch   1 |   200/ 8223 batches`"""

_WITH_SHARE = re.compile(r"(?:\bTrain:\s+\d+(?:/\d+ \(\s*\d+%\))? \[|^)\s*(\d+)/(\d+) (?:\(\s*\d+%\)\]|= [\d.]+%)")
"""`Train: 0 [  50/1251 (  4%)]`, `100/10000 = 1.0%, SPS: 1.2`; not `Train Epoch: 1 [640/60000 (1%)]`, samples"""

_RANGE = re.compile(r"\d+epoch:train:\d+-(\d+)batch")
"""ESPnet's `2epoch:train:101-200batch`"""

_CLU = re.compile(r"logging_writer\.py:\d+\] \[(\d+)\]")  # of Google's trainers in JAX

_PROGRESS = re.compile(r"\bProgress on:\s*train\s+([\d.]+k?)it/([\d.]+k?)it", re.IGNORECASE)
"""levanter's, steps to three digits."""

_LEADING = re.compile(r"(?:^|[\]\s])(?:\[|\(\d+,\s*)?(?:\d+\|)?(\d{1,12})[\])]?\s*(?:\||(?=step_loss))")
"""`490 | loss 5.7`, llama2.c's; `[490 | 12.5] loss=5.7`; after the epoch `1|490|Loss: 5.7`, `(0, 490) step_loss : 5`"""

_NAMED = re.compile(r"(?:[A-Za-z_]\s*[:=]|poch)[\s\[(]*$")  # before a number that is another one
_BAR = re.compile(r"%\|[^|]{0,200}\|\s*(\d+)/(\d+) \[\d")
_BRACKETED = re.compile(r"(?:^|\s)\[\s*(\d+)/(\d+)\]")
_OF_EPOCHS = re.compile(r"poch:?\s*$", re.IGNORECASE)
_EPOCH = re.compile(
    r"(?:\bepochs?(?:\(train\))?['\"]?\s*[:=]?\s*\[?\s*|\btrain:\s*(?=\d+(?:/\d+ \(\s*\d+%\))?\s*\[)|\b(?=\d+epoch:))"
    r"(\d{1,9})(?![\d.]*\.\d)",
    re.IGNORECASE,
)


class Counted:
    """The step that a line names, and where it stands in the line."""

    def __init__(self, found: re.Match[str], group: int, line: str) -> None:
        self.begin, self.end = found.start(), found.end(group)
        self.step = whole(found[group].upper())
        total = found.re.groups > group and found[group + 1]
        self.total = whole(total.upper()) if total else None
        self.redrawn = found.re is not _STEP and "%|" in line
        word = ("global_" if found[1] else "") + found[2].lower() if found.re is _STEP else ""
        self.word = "bar" if self.redrawn else word
        self.of_batches = self.word == "batch"  # an evaluation counts its own
        self.of_epochs = found.re is _BRACKETED and _OF_EPOCHS.search(line, 0, self.begin) is not None
        self.rounded = found.re is _PROGRESS
        epoch = _EPOCH.search(line) if "poch" in line or "Train:" in line else None
        self.epoch = None if epoch is None else whole(epoch[1])


def counted_in(line: str) -> Counted | None:
    """The step, as counted over the whole run where the line has that beside another one."""
    found = _STEP.search(line)
    if found is not None:
        if not found[1] and "lobal" in line:
            found = next((each for each in _STEP.finditer(line) if each[1]), found)
        return Counted(found, 3, line)
    for pattern in _COUNTS:
        found = pattern.search(line)
        if found is not None and not (pattern is _LEADING and _NAMED.search(line, 0, found.start(1))):
            return Counted(found, 1, line)
    return None


_COUNTS = (_IN_EPOCH, _AFTER_EPOCH, _WITH_SHARE, _RANGE, _CLU, _PROGRESS, _LEADING, _BAR, _BRACKETED)


class Epochs:
    """Makes of steps that begin anew in each epoch those of the whole run."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # updates before each epoch
        self._epoch: int | None = None
        self._step = 0  # the newest of the epoch
        self.anew = False

    def over_all(self, counted: Counted, step: int) -> int:
        """The update."""
        epoch = counted.epoch
        if epoch is None:
            return step
        if self._epoch is None or epoch < self._epoch:  # the log's first, or a restart
            self._before.setdefault(epoch, 0)
        elif epoch > self._epoch:
            passed = 0
            if step <= self._step:
                self.anew = True
                passed = self._step if counted.total is None else counted.total * (epoch - self._epoch)
            self._before[epoch] = self._before[self._epoch] + passed
        self._epoch, self._step = epoch, step
        return self._before[epoch] + step
