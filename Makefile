# `make demo` and `make test` set up everything they need in .venv the first time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# one test process per core, each on one thread: torch would start as many threads as there are cores
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')

.PHONY: demo test lint types format bench clean help

help:            ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/'

$(READY): setup.cfg
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY)   ## train, search, compare with the baselines, report: nac_demo/report.html
	$(BIN)/nac-openood demo

test: $(READY)   ## run the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(READY)   ## check style and format with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## check types with mypy
	$(BIN)/mypy

format: $(READY) ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## measure speed and memory as ratios (some minutes)
	$(BIN)/python benchmarks/speed.py

clean:           ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
