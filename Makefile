# Everything is set up in .venv by the first target that needs it; a second time nothing is done.
#
#   make cluster              a cluster of three brokers in ./data, until Ctrl-C
#   make cluster ARGS='--brokers 5 --data-dir /tmp/five'
#   make test                 the tests for every change, in ten minutes;  ARGS='tests/core -q'
#   make test-all             all tests, for a release: an hour
#   make unit                 the tests of decisions, without a JVM or a process
#   make quick FILE=core/model.py   the tests that belong to one file, in seconds
#   make simulate SEEDS=20000 random histories of a simulated cluster, on all cores
#   make soak MINUTES=10      break a loaded cluster at random and check what it promised;
#                             ARGS=--secured: with TLS, logins and ACLs, whose keys are replaced
#   make bench                list the benchmarks;  ARGS='failover --topics 200' runs one
#   make bench-compare        run some benchmarks; tell what got slower since the baseline
#   make check                style, types and architecture
#   make fix                  format the code, repair what can be repaired, write generated pages
#   make clean                remove .venv, caches and build products; ./data stays
#
# .venv gets python3, or the system's Python where that is faster; make PYTHON=/path/to/python
# decides it.

PYTHON ?=
ARGS ?=
FILE ?=
SEEDS ?= 2000
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
# A worker more than there are cores, because tests wait for processes a fifth of their time; five
# at most. The tests of a file run in one worker, in which they share what they start.
WORKERS := $(shell python3 -c 'import os; print(min(os.cpu_count() + 1, 5))')
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Bytecode is kept even in a shell that forbids it: without it each worker, and each of the hundreds
# of brokers that the tests start, compiles every module again.
unexport PYTHONDONTWRITEBYTECODE
RUNNERS := python3 /usr/bin/python3 $(PYTHON)

.DEFAULT_GOAL := test
.PHONY: cluster test test-all quick unit simulate soak bench bench-compare check fix clean

cluster: $(STAMP)
	$(BIN)/python run.py cluster $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m tests.jars
	$(PYTEST) $(PARALLEL) -m 'not nightly' $(ARGS)

test-all: $(STAMP)
	@$(BIN)/python -m tests.jars --all
	$(PYTEST) $(PARALLEL) --seeds 400 --hypothesis-profile nightly $(ARGS)

unit: $(STAMP)
	$(PYTEST) $(PARALLEL) -m 'not zookeeper and not spark and not system and not slow and not nightly' \
		tests/core tests/config tests/records tests/scenarios \
		tests/conformance/test_conformance.py tests/conformance/test_coordinators.py $(ARGS)

quick: $(STAMP)
	@$(BIN)/python -m tests.quick $(FILE)

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

bench-compare: $(STAMP)
	$(BIN)/python -m bench compare $(ARGS)

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m regent.config.reference
	$(BIN)/python -m tests.module_map

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

clean:
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build *.egg-info
	find . -path ./data -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# .venv is set up again when its Python does not run, or is not the one for which, or not where, it
# was set up.
IDENTITY := import sys; print(sys.prefix, *sys.version_info[:2])
ifneq ($(shell $(BIN)/python -I -c '$(IDENTITY)' 2>/dev/null),$(shell cat $(STAMP) 2>/dev/null))
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
	@for python in $(RUNNERS); do \
		"$$python" -I -c 'import fcntl' 2>/dev/null && exec "$$python" config/set_up.py $(PYTHON); \
	done; echo "python3 was not found: install Python 3.11 or later" >&2; exit 1
