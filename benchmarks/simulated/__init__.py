"""Trainers that are none: what the journals and the /metrics of many runs would hold, second by second."""
