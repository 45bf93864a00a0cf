# `make demo` and `make test` work on a fresh machine with Python 3.11; they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
PINS := constraints.txt
EXTRAS := dev,formulas,docs
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start hundreds of processes, which read compiled modules even where the environment has none written.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-lowest lint types layers doctest doctest-discovery doctest-others unit unit-rooms unit-others docs docs-fast fuzz figures benchmarks wheel clean

demo: $(READY)
	$(BIN)/bnrank demo --out demo

# The longest first, two at a time with a thread each: on two cores half the time, on one no more of it.
test: lint layers
	$(MAKE) -j2 unit-others unit-rooms docs-fast types doctest-discovery doctest-others

# The same tests with the lowest supported version of every dependency (gplearn needs a later scikit-learn).
test-lowest:
	$(MAKE) VENV=.venv-lowest PINS=constraints-lowest.txt EXTRAS=dev doctest unit

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks docs/conf.py docs/bnrank_site
	$(BIN)/ruff format --check src tests benchmarks docs/conf.py docs/bnrank_site

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

doctest: doctest-discovery doctest-others

doctest-discovery: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -p no:cacheprovider --doctest-modules src/bnrank/discovery

doctest-others: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -p no:cacheprovider --doctest-modules src/bnrank --ignore=src/bnrank/discovery

ROOMS := tests/cli tests/core tests/discovery tests/errata tests/figures tests/measures tests/networks tests/reporting tests/tasks tests/test_devices.py

unit: $(READY)
	$(MAKE) -j2 unit-rooms unit-others

unit-rooms: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -p no:cacheprovider $(ROOMS)

unit-others: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -p no:cacheprovider tests $(addprefix --ignore=,$(ROOMS))

# The site in docs/_build/html. Notebooks are executed once per change of their code; all warnings are errors.
SPHINX := $(BIN)/sphinx-build -W --keep-going -q -j 2 -a -E

docs: $(READY)
	rm -rf docs/_build/html
	OMP_NUM_THREADS=1 $(SPHINX) -b html docs docs/_build/html
	$(BIN)/python docs/bnrank_site/check.py docs/_build/html
	@echo "The site: docs/_build/html/index.html"

# The same without running notebooks and examples.
docs-fast: $(READY)
	rm -rf docs/_build/fast
	BNRANK_DOCS=fast OMP_NUM_THREADS=1 $(SPHINX) -b html -d docs/_build/fast-trees docs docs/_build/fast
	$(BIN)/python docs/bnrank_site/check.py docs/_build/fast

# 10,000 bad calls of the public functions; see docs/reliability.md.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --calls 10000 --seed 0

figures: $(READY)
	$(BIN)/bnrank reproduce all --out reproduction

benchmarks: $(READY)
	$(BIN)/python -m benchmarks

# The sdist and the wheel in dist/; the wheel is installed into an empty environment and runs the demo outside of the
# source tree, once so that Python compiles what it installed, and once within 20 seconds.
wheel:
	rm -rf .venv-wheel dist
	$(PYTHON) -m venv .venv-wheel/build
	.venv-wheel/build/bin/python -m pip install --quiet --disable-pip-version-check build
	.venv-wheel/build/bin/python -m build
	$(PYTHON) -m venv .venv-wheel/empty
	.venv-wheel/empty/bin/python -m pip install --quiet --disable-pip-version-check -c $(PINS) dist/bnrank-*.whl
	mkdir .venv-wheel/folder
	cd .venv-wheel/folder && ../empty/bin/bnrank --version
	cd .venv-wheel/folder && timeout 20 ../empty/bin/bnrank demo --quick --quiet

# One pip call with the pins, so that torch comes as pinned and small.
$(READY): pyproject.toml $(PINS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(PINS) -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-wheel dist demo reproduction docs/_build docs/api docs/gallery docs/notebooks .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
