"""Sentinel, the daemon and its command line. Imports nothing, so that every door stays quick to open."""
