"""The parts of `benchmarks/detectors.py`: labelled curves, detectors, scores, tables. See docs/BACKTEST.md."""
