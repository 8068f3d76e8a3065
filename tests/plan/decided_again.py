"""A turn that is kept, read back and decided again is the same, byte for byte."""

from __future__ import annotations

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.outcome import Memory, Turn
from sentinel.plan.review.kept_turn import KeptTurn, to_json, told
from sentinel.plan.turn import decide
from sentinel.vocabulary.numbers import dump_json, load_object


def check(facts: Facts, policy: Policy, memory: Memory, turn: Turn) -> None:
    for with_log in (False, True):
        written = dump_json(to_json(facts, policy, memory, turn, with_log=with_log))
        read = KeptTurn.from_json(load_object(written), () if with_log else facts.events)
        again = told(decide(read.facts, read.policy, read.memory))
        assert dump_json(again) == dump_json(read.decided) == dump_json(told(turn))
