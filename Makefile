# `make demo` and `make test` work on a fresh machine with Python 3.11; they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
PINS := constraints.txt
EXTRAS := dev,formulas
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-lowest lint types layers doctest unit unit-rooms unit-others fuzz figures benchmarks clean

demo: $(READY)
	$(BIN)/bnrank demo --out demo

test: lint types layers doctest unit

# The same tests with the lowest supported version of every dependency (gplearn needs a later scikit-learn).
test-lowest:
	$(MAKE) VENV=.venv-lowest PINS=constraints-lowest.txt EXTRAS=dev doctest unit

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

doctest: $(READY)
	$(BIN)/pytest -q --doctest-modules src/bnrank

# Two halves side by side, a thread each: on two cores half the time, on one no more of it.
ROOMS := tests/cli tests/core tests/discovery tests/errata tests/figures tests/measures tests/networks tests/reporting tests/tasks

unit: $(READY)
	$(MAKE) -j2 unit-rooms unit-others

unit-rooms: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -p no:cacheprovider $(ROOMS)

unit-others: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -p no:cacheprovider tests $(addprefix --ignore=,$(ROOMS))

# 10,000 bad calls of the public functions; see docs/reliability.md.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --calls 10000 --seed 0

figures: $(READY)
	$(BIN)/bnrank reproduce all --out reproduction

benchmarks: $(READY)
	$(BIN)/python -m benchmarks

# One pip call with the pins, so that torch comes as pinned and small.
$(READY): pyproject.toml $(PINS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(PINS) -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf .venv .venv-lowest demo reproduction .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
