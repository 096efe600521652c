# Needs only Python (3.11 or later) and make; uv is used when it is on the PATH.
PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
# One worker for each core: most of the time is compilation. The tests of a file stay together,
# because they share what they compiled; conftest.py has their order. For example
# PYTEST_ARGS="-k flow".
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS_STAMP := $(PEERS)/.installed
UV := $(shell command -v uv 2>/dev/null)
ifdef UV
# Compiled now, as pip does: in tests the warnings of others' code would be errors.
PIP_INSTALL = $(UV) pip install --quiet --compile-bytecode --python $(VENV)/bin/python
else
PIP_INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
endif

# On busy cores the threads of OpenBLAS slow small factorisations down many times over.
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv test check lint format demo docs bench peers clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP)  ## Create .venv with the package and all it needs for work on it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mufield needs Python 3.11 or later, found " + sys.version.split()[0] + "; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[dev]' -c constraints.txt
	@touch $@

test: lint  ## Run every check: ruff, mypy, import contracts, tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint  ## Run the static checks and the quick tests: two minutes once programs are compiled
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow"

lint: venv  ## Run the static checks only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv  ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: venv  ## Run the demonstration; its pictures go to demo/
	$(BIN)/mufield demo

docs: venv  ## Build the documentation into site/; warnings are errors
	$(BIN)/python docs/commands_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# peers_*.py need the environment of `make peers`.
BENCHMARKS = $(filter-out benchmarks/peers_% benchmarks/_%,$(sort $(wildcard benchmarks/*.py)))
bench: venv  ## Run every benchmark in its quick form
	@set -e; for script in $(BENCHMARKS); do echo "$$script"; $(BIN)/python $$script --quick; done

peers: $(PEERS_STAMP)  ## Compare with MFGLib, OpenSpiel and SB3 in an environment of their own
	$(PEERS)/bin/python benchmarks/peers_flow.py
	$(PEERS)/bin/python benchmarks/peers_rl.py --save results

# torch comes first, alone and with plain pip, so that nobody downloads CUDA by accident.
# MFGLib 0.3 caps rich below our pin; with it, pip would quietly fall back to MFGLib 0.1.
$(PEERS_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet torch==2.13.0
	grep -v '^rich==' constraints.txt > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install --quiet mfglib==0.3.0 open_spiel 'stable-baselines3>=2.9' \
	  -e '.[gymnasium]' -c $(PEERS)/constraints.txt
	@touch $@

clean:  ## Remove the environments, caches and build products
	rm -rf $(VENV) $(PEERS) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
