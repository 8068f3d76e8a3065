"""From what was observed of a run to what is done about it, as data with reasons. Pure.

In: `Facts` (facts.py): a `RunState` (observation.py), the verdict and the judge's readings; and the `Policy`.
Out: one `Turn` (turn.py): the actions, the incident log's records, the alerts and the outcome.
"""
