# Needs only Python (3.11 or later) and make; uv is used when it is on the PATH.
PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
LOWEST ?= .venv-lowest
# One worker for each core: most of the time is compilation. The tests of a file stay together,
# because they share what they compiled; conftest.py has their order. For example
# PYTEST_ARGS="-k flow".
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.installed-viz
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
.PHONY: help venv test test-all lint format demo docs bench reproduce package lowest peers clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP)  ## Create .venv with the package and all it needs for work on it

$(STAMP): $(DEMO_STAMP)
	@echo "installing what work on mufield needs (about 2 GB: Ray, OpenSpiel, docs); two minutes"
	$(PIP_INSTALL) -e '.[dev]' -c constraints.txt
	@touch $@

# The demonstration needs the package and its pictures alone.
$(DEMO_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mufield needs Python 3.11 or later, found " + sys.version.split()[0] + "; set PYTHON=python3.11")'
	@echo "installing mufield and what draws its pictures into $(VENV); half a minute"
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[viz]' -c constraints.txt
	@touch $@

test: lint  ## Run every check: ruff, mypy, import contracts, tests; ten minutes on two cores
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not nightly"

# A claim that does not hold must not keep the tests from running.
test-all: lint  ## Run everything, as the night does: all tests at full size, all benchmarks' claims
	MUFIELD_NIGHT=1 $(BIN)/python -m pytest $(PYTEST_ARGS); tests=$$?; \
	  $(MAKE) bench && exit $$tests

lint: venv  ## Run the static checks only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv  ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(DEMO_STAMP)  ## Learn the four rooms; the pictures go to demo/
	$(BIN)/python examples/demo.py

docs: venv  ## Build the documentation into site/; warnings are errors
	$(BIN)/python docs/commands_page.py
	$(BIN)/python docs/reference_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: venv  ## Run every benchmark in its quick form; docs/benchmarks.md keeps the claims
	$(BIN)/python benchmarks/run_all.py --quick

# For example WHAT=learning-curve, or WHAT="all --quick".
WHAT ?= all
reproduce: venv  ## Compute the paper's figures, films and numbers into results/; an hour on two cores
	$(BIN)/python -m reproduction $(WHAT)

package: venv  ## Build wheel and sdist into dist/ and try both in clean environments
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	MUFIELD_DIST=dist $(BIN)/python -m pytest tests/test_package.py

# Tests that reach every dependency. Warnings are those of old versions beside new ones.
LOWEST_TESTS ?= tests/golden tests/policies tests/observed tests/test_problem.py \
  tests/test_sealed_files.py tests/test_viz_city.py tests/adapters/test_parallel.py \
  tests/fleet/test_fluid.py tests/planning/test_bptt.py tests/runs/test_json.py \
  tests/jobs/test_jobs.py
lowest:  ## Run tests with the lowest versions that pyproject.toml allows; needs uv
	$(UV) venv --quiet --clear --python 3.11 $(LOWEST)
	$(UV) pip install --quiet --compile-bytecode --python $(LOWEST)/bin/python \
	  --resolution lowest-direct -r pyproject.toml --extra viz --extra parquet --extra pettingzoo
	$(UV) pip install --quiet --python $(LOWEST)/bin/python --no-deps .
	$(UV) pip install --quiet --compile-bytecode --python $(LOWEST)/bin/python \
	  pytest hypothesis beartype POT
	$(LOWEST)/bin/python -m pytest -W default -m "not nightly and not slow" $(LOWEST_TESTS)

peers: $(PEERS_STAMP)  ## Compare with MFGLib, OpenSpiel and SB3 in an environment of their own
	$(PEERS)/bin/python benchmarks/peers.py --out results

# torch comes first, alone and with plain pip, so that nobody downloads CUDA by accident.
# MFGLib 0.3 caps rich below our pin; with it, pip would quietly fall back to MFGLib 0.1.
$(PEERS_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet torch==2.13.0
	grep -v '^rich==' constraints.txt > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install --quiet mfglib==0.3.0 open_spiel bench-mfg-suite==0.1.3 \
	  'stable-baselines3>=2.9' \
	  -e . -c $(PEERS)/constraints.txt
	@touch $@

clean:  ## Remove the environments, caches and build products
	rm -rf $(VENV) $(PEERS) $(LOWEST) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
