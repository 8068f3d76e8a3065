"""Readers of other trainers' logs."""
