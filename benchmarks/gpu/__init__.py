"""The checks that need a GPU, as one command: `python -m benchmarks.gpu --minutes 9`, or `make gpu`."""
