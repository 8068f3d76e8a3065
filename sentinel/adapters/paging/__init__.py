"""Telling a person: webhook, mail, command, Alertmanager; and the outbox that a page waits in until it is told."""
