# `make demo` and `make test` set up everything they need in .venv the first time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   := $(VENV)/.demo-ready
# one test process per core, each on one thread: torch would start as many threads as there are cores
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')

.PHONY: demo test test-all test-oldest lint types format docs bench gpu wheel audit clean help

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

$(READY): EXTRA := dev
$(DEMO): EXTRA := demo
$(READY) $(DEMO): setup.cfg pyproject.toml
	@echo "Installing nac-openood[$(EXTRA)] into $(VENV), once: some minutes, and up to 6 GB, most of it PyTorch."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $@
	@( $(BIN)/python -m pip install --disable-pip-version-check -e '.[$(EXTRA)]' 'setuptools>=78.1.1' && touch $@ ) \
		| while read -r line; do case "$$line" in Downloading*|Installing*) printf '  %.100s\n' "$$line" ;; esac; done; \
		test -f $@

demo: $(DEMO)    ## train, search, compare with the baselines, report: nac_demo/report.html
	$(BIN)/nac-openood demo

# where the miniature benchmark is available, one test image of this many
test: export NAC_BENCH_EVERY ?= 20
test test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test:            ## run the test suite
test-all:        ## run it with every image of the miniature benchmark

# torch 2.6 warns about programs that it exports itself, and Python 3.9's matplotlib about pyparsing 3.3
test-oldest:     ## run the core tests with the oldest supported dependencies (constraints/oldest.txt)
	@test -x $(VENV)-oldest/bin/python || $(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/oldest.txt \
		-e '.[coretest]' 'pyparsing<3.3'
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -n $(JOBS) --dist loadfile \
		-W 'ignore:Attempted to insert a get_attr Node:UserWarning' -W 'ignore:Node lifted_tensor:UserWarning' \
		-W 'ignore:Additional :UserWarning' @tests/core.txt

lint: $(READY)   ## check style and format with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## check types with mypy
	$(BIN)/mypy

format: $(READY) ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)   ## build the documentation's site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY)  ## measure speed and memory as ratios (some minutes)
	$(BIN)/python benchmarks/speed.py

gpu: $(READY)    ## measure NAC on this machine's GPU: gpu_report.md, to paste into an issue
	$(BIN)/python scripts/gpu_report.py

wheel: $(READY)  ## build wheel and sdist of the last commit, the same bytes everywhere: dist/
	$(BIN)/python scripts/build_wheel.py

audit: $(READY)  ## look up what the package needs to run in the database of known vulnerabilities
	@test -x $(VENV)-audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)-audit && \
		$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	$(BIN)/python scripts/runtime_packages.py > $(VENV)-audit/runtime.txt
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps -r $(VENV)-audit/runtime.txt

clean:           ## remove the environment and caches
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-audit site .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
