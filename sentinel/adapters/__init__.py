"""Thin access to the outside world, one module or folder for each system, independent of one another.

In: paths, commands and addresses of the outside world. Out: what is there, as plan's and the vocabulary's values; and
its changes. No decision is made here.
"""
