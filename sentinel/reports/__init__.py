"""What people read of a run: the chronicle and the triage page.

In: the run's past (`Past`): its history, incidents and events. Out: lines, Markdown, pictures; nothing of the run is
changed.
"""
