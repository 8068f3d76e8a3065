"""All checks that need a GPU, as one command: `python -m benchmarks.gpu --minutes 60`, or `make gpu`."""
