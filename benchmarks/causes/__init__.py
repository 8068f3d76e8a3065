"""Trainings that diverge from a cause that is injected and known."""
