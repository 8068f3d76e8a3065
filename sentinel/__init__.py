"""Sentinel, the daemon and its command line. This file imports nothing, so that every command starts quickly.

In: what a trainer and a scheduler report of a run, and its checkpoints. Out: a verdict, a plan, and, in mode act, a
rollback and a restart on record.
"""
