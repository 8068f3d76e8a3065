"""Telling a person: webhook, mail, command, Alertmanager; and the outbox that a page waits in until it is told.

In: pages as plan writes them, and the `[paging]` table. Out: messages that a channel has taken, or that wait on the
disk.
"""
