# `make demo` and `make test` need nothing but Python 3.11 and the package registries; each sets up what it needs first.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := .make/installed
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --durations=15
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo test check rest full soak wandb trl llamafactory bench gpu mutants chart pages panels site clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/setup.sh tools/system_packages.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) tools/setup.sh
	@touch $(STAMP)

demo: setup
	@echo "==> the demo: a small GPT that really diverges, and sentinel beside it; two to five minutes"
	@if [ -d demo-output ]; then mv -v demo-output demo-output.before-$$(date +%Y%m%d-%H%M%S); fi
	@$(BIN)/sentinel demo --output demo-output $(ARGS)

test: setup check

check:
	@echo "==> ruff, mypy, import-linter"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports | tail -n 3
	@echo "==> tests of the first tier, on $(WORKERS) workers: about ten minutes on two cores"
	@$(PYTEST) -m 'not full and not soak'

rest: setup # the second tier without the first: with `make test` before it, `make full`
	@$(MAKE) --no-print-directory --output-sync --jobs=4 wandb trl llamafactory olmo_core
	@echo "==> tests of the second tier, on $(WORKERS) workers: about an hour on two cores"
	@$(PYTEST) -m 'full and not soak'

full: setup
	@$(PYTEST) -m 'not soak'

soak: setup
	@$(BIN)/pytest -m soak --durations=0 -o timeout=14400

wandb: # the tests that need W&B's client, in an environment without the trainer: it brings 90 MB of its own
	@test -x .venv-wandb/bin/python || $(PYTHON) -m venv .venv-wandb
	@.venv-wandb/bin/pip install -q -c constraints.txt -e '.[daemon,wandb]' pytest pytest-timeout pytest-xdist hypothesis
	@.venv-wandb/bin/python -m pytest --numprocesses=4 tests/adapters/test_wandb_against_a_stub.py tests/adapters/test_wandb_branches.py tests/sources/test_wandb_file.py

trl llamafactory olmo_core: %: .venv-%/installed # programs of others that the second tier trains with, each in its environment

.venv-%/installed: tests/integrations/%.txt
	@echo "==> $* in .venv-$*: about a minute"
	@$(PYTHON) -m venv --clear .venv-$*
	@.venv-$*/bin/pip install -q --no-compile -c constraints.txt torch
	@.venv-$*/bin/pip install -q --no-compile --no-deps -r $<
	@rm -f .venv-$*/lib/python*/site-packages/torchaudio/lib/*.so # built for CUDA: torch for the CPU can't load them
	@touch $@

bench: setup
	@for program in benchmarks/*.py; do $(BIN)/python $$program; done

gpu: # on a machine with a GPU; MINUTES=N, 9 by default; OUT=DIR gets each row as it comes. A second call goes on
	@$(PYTHON) tools/gpu_environment.py $(if $(WHEELS),--wheels $(WHEELS)) -- --minutes $(or $(MINUTES),9) $(if $(OUT),--out $(OUT))

mutants: setup # small breakages of the code that matters, and how many of them the tests notice; about an hour on two cores
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants

chart:
	@rm -rf charts/sentinel/files && mkdir -p charts/sentinel/files/rules charts/sentinel/files/dashboards
	@cp dashboards/rules/*.yaml charts/sentinel/files/rules/
	@cp dashboards/*.json charts/sentinel/files/dashboards/

pages: setup # the pages of docs/ that are made from the code
	@$(BIN)/python -m tools.pages

panels: setup # needs Node 20 with npm, prometheus and chromium; brings 600 MB of Grafana's own components below .make/
	@echo "==> pictures of the dashboard's panels: npm takes a minute or two, the run that they show two to four"
	@mkdir -p .make/panels && cp tools/panels/package.json tools/panels/package-lock.json .make/panels/
	@cd .make/panels && npm ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund
	@$(BIN)/python -m tools.panels --modules .make/panels/node_modules

site: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .make .mypy_cache .pytest_cache .ruff_cache site
