# Everything sets itself up: a virtual environment in .venv, with CPU JAX.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test study lint types bench reproduce browser clean

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## the paper's first experiment, with a picture, in about a minute
	$(BIN)/terrazzo demo

test: export TERRAZZO_CACHE := off
test: $(STAMP) lint  ## the test suite
	$(BIN)/python -m pytest -n 2 tests/test_[a-h]*.py  # in parts: compiled code fills a process
	$(BIN)/python -m pytest -n 2 tests/test_[i-s]*.py
	$(BIN)/python -m pytest -n 2 tests/test_[t-z]*.py
	$(BIN)/python -m pytest -n 2 --doctest-modules src/terrazzo  # as users run: float32, no type checks

study: $(STAMP)  ## the long studies that `make test` leaves out
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)  ## timings, as ratios
	$(BIN)/python benchmarks/training_loop.py

reproduce: $(STAMP)  ## the paper's experiments on two CPU cores, in about 20 minutes, and their page
	$(BIN)/terrazzo reproduce all --preset small --out reproduction
	$(BIN)/terrazzo report reproduction

browser: $(STAMP)  ## Debian's Chromium (as root), and the report tested in it
	apt-get update
	apt-get install -y chromium
	$(BIN)/python -m pytest tests/test_report_browser.py

clean:
	rm -rf $(VENV)
