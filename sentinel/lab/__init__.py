"""Short trainings beside a run, on copies of its checkpoints: probes, the bisect of an incident, the tuning of a
warmup.

In: the run's checkpoints and readings, which are only read, and its configuration. Out: reports and, for a rung that
asks for the cause, `BisectSeen`; the core (plan, act) imports nothing from here.
"""
