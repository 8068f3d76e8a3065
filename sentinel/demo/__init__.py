"""The whole path on a real, small training: diverge, judge, roll back, restart, prove.

In: a folder and a seed. Out: a run's folders, its report and its picture.
"""
