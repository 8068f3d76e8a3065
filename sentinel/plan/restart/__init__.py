"""The plan that stops the job, rolls back and starts it again, also one that was cut short.

In: the run as observed (`Facts`), the decision to act, the policy. Out: a `Plan`: the actions still to do in their
order, or the refusal as a sentence.
"""
