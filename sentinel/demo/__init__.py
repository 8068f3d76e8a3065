"""The main job, on real training: diverge, judge, roll back, restart, prove."""
