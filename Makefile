# `make demo` and `make test` set up everything they need in .venv the first time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint types format bench clean help

help:            ## show what can be made
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/'

$(READY): setup.cfg
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY)   ## train, search, compare with 20 baselines, report: nac_demo/report.html
	$(BIN)/nac-openood demo

test: $(READY)   ## the test suite
	$(BIN)/python -m pytest

lint: $(READY)   ## ruff, style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy on the package
	$(BIN)/mypy

format: $(READY) ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## speed and memory as ratios, some minutes
	$(BIN)/python benchmarks/speed.py

clean:           ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
