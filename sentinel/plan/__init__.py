"""From what was observed of a run to what is done about it, as data with reasons. Pure.

In: `Facts` (facts.py) in groups (observation.py): liveness, folders, settings, readings, a person's word, the verdict,
the incidents; the `Policy`; the watch's `Memory`.
Out: one `Turn` (outcome.py): the actions, the incident log's records, the alerts and the outcome.
"""
