"""The restart of the training in its own processes: whether it is right, whether a trainer is parked, how far it is.

In: the run as observed (`Facts`), the decision, the policy. Out: a `Way`, a `StageSeen`, or why a trainer is not
parked, each with its reason as a sentence.
"""
