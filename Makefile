# Everything runs in .venv, which every target makes or completes when need be.

PYTHONS ?= python3.13 python3.12 python3.11 python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
# One more than there are cores: who waits for a broker or a browser leaves room for others.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
# Processes that are started again and again would compile everything each time.
unexport PYTHONDONTWRITEBYTECODE
# The build backend warns of what editable installations are, which is no news here.
PIP_INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
.PHONY: help install demo pictures test test-fast check verify verify-leaves peers bench clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

install: $(INSTALLED) ## .venv with dpstream, the local Kafka, plots and the experiments

demo: $(INSTALLED) ## real students, a local Kafka, estimates beside the truth
	@$(BIN)/dpstream demo $(OPTIONS)

pictures: $(TOOLS) ## the pictures of the demonstration, made anew by running it; needs Chromium
	@$(BIN)/python -m tests.support.demo_pictures

test: $(TOOLS) ## the tests, broker included
	@$(BIN)/pytest -m "not verify" -n $(WORKERS) --dist worksteal

test-fast: $(TOOLS) ## the tests that need no broker and are no exhaustive search
	@$(BIN)/pytest -m "not kafka and not verify and not slow" -n auto --dist worksteal

check: $(TOOLS) ## ruff (lint and format), typos, who may import whom, and mypy --strict
	@$(BIN)/ruff check
	@$(BIN)/typos --config typos.toml
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/mypy

verify: $(TOOLS) ## long statistical tables and experiments
	@$(BIN)/pytest -m verify -s

verify-leaves: $(TOOLS) ## whether all else works without each leaf; LEAF=NAME for one
	@$(BIN)/python -m tests.support.leaves verify $(LEAF)

peers: $(TOOLS) ## mechanisms of OpenDP, which is fetched, under the audit that attacks ours
	@$(BIN)/pip install --quiet --upgrade --target .venv-peers "opendp>=0.14"
	@PYTHONPATH=.venv-peers $(BIN)/pytest -m verify -s tests/verify/test_peers.py

bench: $(TOOLS) ## speed and memory, as a table and as JSON
	@$(BIN)/python -m tests.benchmarks
	@$(BIN)/python -m tests.benchmarks.peers
	@$(BIN)/python -m tests.benchmarks.collector
	@$(BIN)/python -m tests.benchmarks.many_producers
	@$(BIN)/python -m tests.benchmarks.large_windows

clean: ## remove .venv and caches, but no state of jobs or of the local Kafka
	@rm -rf $(VENV) .venv-peers build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml experiments/pyproject.toml
	@python=$$(for name in $(PYTHONS); do \
	    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	        && echo "$$name" && break; \
	done); \
	if [ -z "$$python" ]; then \
	    echo "No Python 3.11 or later among: $(PYTHONS)." >&2; \
	    echo "Install one, or name it: make PYTHONS=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	    exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; \
	    exit 1; \
	fi; \
	echo "Installing into $(VENV): about a minute the first time."; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear $(VENV)
	@$(PIP_INSTALL) --editable '.[local,plot]' --editable ./experiments
	@touch $@

$(TOOLS): $(INSTALLED)
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@
