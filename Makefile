# `make demo` and `make test` need nothing but Python 3.11 and the package registries; each sets up what it needs first.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := .make/installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo test check full soak bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "==> setting up $(VENV): torch and DeepSpeed are large; this takes two to five minutes the first time"
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	@tools/system_packages.sh
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> installing torch (first, so that nothing else pulls its CUDA build)"
	@$(BIN)/pip install --progress-bar on -c constraints.txt torch 2>&1 | grep -v '^WARNING: Location' || test $${PIPESTATUS[0]} -eq 0
	@echo "==> installing DeepSpeed and the rest"
	@$(BIN)/pip install --progress-bar on -c constraints.txt -e '.[dev]' 2>&1 | grep -v '^WARNING: Location' || test $${PIPESTATUS[0]} -eq 0
	@mkdir -p .make && touch $(STAMP)
	@echo "==> set up"

demo: setup
	@echo "==> the demo: a small GPT that really diverges, and sentinel beside it; about a minute or two"
	@if [ -d demo-output ]; then mv -v demo-output demo-output.before-$$(date +%Y%m%d-%H%M%S); fi
	@$(BIN)/sentinel demo --output demo-output

test: setup check

check:
	@echo "==> ruff, mypy, import-linter"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@echo "==> tests of the first tier (real DeepSpeed, real training, a real Slurm: ten to twenty minutes)"
	@$(BIN)/pytest -m 'not full and not soak' --durations=10

full: setup
	@$(BIN)/pytest -m 'not soak' --durations=20

soak: setup
	@$(BIN)/pytest -m soak --durations=0 -o timeout=14400

bench: setup
	@for program in benchmarks/*.py; do $(BIN)/python $$program; done

clean:
	rm -rf $(VENV) .make .mypy_cache .pytest_cache .ruff_cache
