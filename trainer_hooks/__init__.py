"""Imported inside the trainer."""
