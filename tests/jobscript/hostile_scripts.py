"""Job scripts and changes that are made to go wrong, drawn at random; bash itself says what the trainer then gets.

`python -m tests.jobscript.hostile_scripts SEED COUNT` tries as many and prints those that came out wrong.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from typing import Any

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption, SetVariable, rewrite
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from tests.jobscript.shell_sandbox import SCRIPTS, Run, run

__all__ = ["draw", "wrong"]

_VALUES = (
    *("3e-5", "", " ", "a b", "it's", '"', "'", "`", "``", "`touch canary`", "$(touch canary)", "${HOME}", "$HOME"),
    *("\\", "\\\\", "a\\", "\\`", "'`", "`'", '"`"', "a;touch canary", "a&touch canary", "a|b", "<(touch canary)"),
    *("a\nb", "\n", "a\rb", "a\tb", "\x00", "\x1b[31m", "\x7f", "\u00a0", "a\u2003b", "\u2028", "\u202e", "\ufeff"),
    *("\ud800", "a\udfffb", "\udcff", "\udc80", "é", "日本", "\U0001d518", "#", "#a", "!", "!!", "~", "~root", "*"),
    *("?", "[a]", "{a,b}", "{1..3}", "-", "--", "-x", "--lr", "-1", "=", "a=b", "EOT", "<<EOT", "$'a'", '$"a"', "%s"),
    *("$#", "$$", "x" * 5000, "'" * 301, "(", ")", "((", "]]", "fi", "\u0130", "a\\\nb", "$((1/0))", "\\x60", "&>x"),
    "^",
)
_NOISE = (
    *("# it's `a` comment with \" and '", "echo 'it`s' > /dev/null", 'echo "`echo a`" > /dev/null'),
    *("echo `echo b` `echo c`", "A=`echo d`", "B='`'", "C=\\`", 'D="\\`"', "E=$(echo `echo x`)", "F=$'a\\'b`'"),
    *("cat > /dev/null <<EOF\n`echo x` ' \"\nEOF", "cat > /dev/null <<'EOF'\n`$(\"'\nEOF"),
    *("cat > /dev/null <<-EOF\n\t'\n\tEOF", 'G="it\'s"', "H='say \"`\"'", "I=é日本\u00a0", "J=\udcff", ": \u2003 x"),
    *("true # \u2028 b", "K=${A:-`echo z`}", "L=$((1+2))", "case x in `echo x`) ;; esac", "M=(`echo a b` 'c`d')"),
    *('if [ -n "`echo q`" ]; then :; fi', 'N="`echo \\`echo r\\``"', ": ' ` ' \" ' \"", "O=a\\ b", ": <<<'`'"),
    *("P='" + "y" * 5000 + "'", 'echo `echo "a b"`', "Q=`echo 'x'", "R='unterminated", 'S="unterminated'),
    *("cat <<EOT", "\ufeff", "T=a\r", "U=\ud800", "V=\x00", "function f { echo `echo`; }", 'W="${A//`/x}"', ": \\"),
    *('X="a\\\nb"', "Y=`\necho s\n`", "trap 'echo `echo u`' EXIT", "[[ a == `echo a` ]]"),
    *("Z=$(cat <<EOI\n`echo t` )\nEOI\n)", 'echo "$(echo "`echo n`")"', "`true`", "a=`echo 1``echo 2`"),
    *('echo "\\\\`echo x\\`"', ": $'\\x60'"),
)
_FLAGS = ("--lr", "--seed", "--clip-grad", "--title", "--new-option", "--no-load-rng", "--train-samples")
_TEXTS = tuple(path.read_text() for path in SCRIPTS)


def draw(random_: random.Random) -> tuple[str, Change]:
    """A script, and what is asked of it. ConfigError where the change is none that can be asked for."""
    text = random_.choice(_TEXTS)
    lines = text.split("\n")
    for _ in range(random_.choice((0, 0, 1, 1, 2, 3))):
        lines.insert(random_.choice((1, len(lines) - 1, random_.randrange(1, len(lines)))), random_.choice(_NOISE))
    text = "\n".join(lines)
    if random_.random() < 0.02:
        text = random_.choice(("\ufeff" + text, text.replace("\n", "\r\n"), text[: len(text) // 2], text + "\\"))
    value = "".join(random_.choice(_VALUES) for _ in range(random_.choice((1, 1, 1, 2, 3))))
    flag = random_.choice(_FLAGS)
    kind = random_.random()
    if kind < 0.55:
        return text, SetOption(flag=flag, value=value)
    if kind < 0.65:
        return text, RemoveOption(flag=flag)
    if kind < 0.75:
        return text, SetVariable(name=random_.choice(("LR", "SEED", "A", "CLIP", "NNODES")), value=value)
    if kind < 0.9:
        return text, SetJson(
            path=(random_.choice(("train_batch_size", "made", "h`s")), "x")[: random_.choice((1, 2))], value=value
        )
    return text, RemoveOption(flag=random_.choice(("--seed", "--clip-grad", "--title")), values=1)


def wrong(text: str, change: Change, outcomes: Counter[str] | None = None) -> str | None:
    """What came out wrong; None where the script was refused, or gives the trainer what was asked and nothing else."""
    counted = Counter[str]() if outcomes is None else outcomes
    try:
        rewritten = rewrite(text, [change])
    except ScriptRefused:
        counted["refused"] += 1
        return None
    except Exception as error:  # noqa: BLE001 - what is looked for
        return f"raised {type(error).__name__}: {error}"
    try:
        before = _ran(text)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, UnicodeEncodeError):
        counted["no script that runs"] += 1
        return None
    counted["compared"] += 1
    try:
        after = _ran(rewritten.text)
    except (subprocess.CalledProcessError, UnicodeError) as error:
        return f"bash refuses what came of it: {error!r:.200}"
    if after.executed and not before.executed:
        return "it executed the value"
    return _differs(before, after, change)


def _ran(text: str) -> Run:
    return run(text, options=False)


def _differs(before: Run, after: Run, change: Change) -> str | None:
    (was, others), (now, others_now) = _split(before), _split(after)
    if others != others_now:
        return f"other programs get something else: {others} {others_now}"
    if isinstance(change, SetJson):
        return _json_differs(before, after, change) or (None if was == now else "the trainer's words changed")
    if isinstance(change, SetVariable):
        return None  # what follows a variable is not known here
    if before.configs != after.configs:
        return "a written file changed"
    if len(was) != len(now):
        return "the trainer is called another number of times"
    for one, other in zip(was, now, strict=True):
        if isinstance(change, RemoveOption):
            if change.flag in other or not _contains(one, other):
                return f"{change.flag} was not removed alone: {one} {other}"
            continue
        wanted = [change.flag] if change.value is None else [change.flag, change.value]
        joined = f"{change.flag}={change.value}"
        place = max((i for i, word in enumerate(other) if word in (change.flag, joined)), default=None)
        if place is None or (other[place] != joined and other[place : place + len(wanted)] != wanted):
            return f"the trainer does not get {wanted!r:.200}: {other!r:.2000}"
        rest = other[:place] + other[place + (1 if other[place] == joined else len(wanted)) :]
        if not _contains(one, rest) or len(one) - len(rest) not in (0, 1, 2):
            return f"the trainer gets something else: {one!r:.1500} {other!r:.1500}"
    return None


def _contains(whole: list[str], part: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def _split(ran: Run) -> tuple[list[list[str]], list[list[str]]]:
    training = [call for call in ran.programs if any(word.endswith("pretrain_gpt.py") for word in call)]
    return training, [call for call in ran.programs if call not in training]


def _json_differs(before: Run, after: Run, change: SetJson) -> str | None:
    if before.configs.keys() != after.configs.keys():
        return "other files are written"
    changed = 0
    for name, text in after.configs.items():
        expected: Any = json.loads(before.configs[name])
        at = expected
        for key in change.path[:-1]:
            if not isinstance(at.get(key), dict):
                at[key] = {}
            at = at[key]
        at[change.path[-1]] = change.value
        changed += json.loads(text) == expected
    return None if changed == 1 or not after.configs else f"the JSON is another: {after.configs!r:.1500}"


def main(seed: int, count: int) -> None:
    random_, found = random.Random(seed), Counter[str]()
    for number in range(count):
        try:
            text, change = draw(random_)
        except ConfigError:
            found["no change"] += 1
            continue
        if why := wrong(text, change, found):
            found["wrong"] += 1
            print(number, f"{change!r:.300}", why, sep="\n   ", flush=True)
            noise = [line for line in text.split("\n") if line in _NOISE]
            print("   noise", ascii(noise), flush=True)
    print(dict(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
