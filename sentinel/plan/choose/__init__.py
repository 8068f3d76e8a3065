"""What can be changed at a restart, and where a restart goes back to.

In: the ladder and the budgets as configured, the incident, what the run trained with. Out: the target, and the
overrides of a rung with what of them the trainer can apply.
"""
