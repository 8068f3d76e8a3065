"""One HTML page on which a run is understood: what diverged, what led, what was done about it, whether it helped.

In: the run's past, and its curves. Out: one HTML document, as a file or served while the run goes on.
"""
