# Everything sets itself up: a virtual environment in .venv, with CPU JAX.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test study lint types bench reproduce docs gallery browser wheel lowest clean

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## the paper's first experiment, with a picture, in about a minute
	$(BIN)/terrazzo demo

test: $(STAMP) lint types  ## the test suite and all doctests, with the slowest of them
	$(BIN)/python -m pytest -n $(WORKERS) --durations=15 --doctest-modules tests src/terrazzo

study: $(STAMP)  ## the long studies that `make test` leaves out
	XLA_FLAGS= $(BIN)/python -m pytest -m slow

lint: $(STAMP)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## static types
	$(BIN)/mypy

bench: $(STAMP)  ## timings, as ratios
	$(BIN)/python benchmarks/training_loop.py

reproduce: $(STAMP)  ## the paper's experiments on two CPU cores, in about 20 minutes, and their page
	$(BIN)/terrazzo reproduce all --preset small --out reproduction
	$(BIN)/terrazzo report reproduction

docs: $(STAMP)  ## the documentation, in build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gallery: $(STAMP)  ## runs the worked problems (about 25 minutes) and stores what they print and draw
	$(BIN)/python gallery/run.py

browser: $(STAMP)  ## Debian's Chromium (as root), and the report tested in it
	apt-get update
	apt-get install -y chromium
	$(BIN)/python -m pytest tests/test_report_browser.py tests/test_run_page.py tests/test_site.py

wheel: $(STAMP)  ## the wheel and the source distribution, in dist, and an import of the wheel alone
	rm -rf dist $(VENV)-wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd dist && ../$(VENV)-wheel/bin/terrazzo samplers
	rm -rf $(VENV)-wheel

lowest: $(STAMP)  ## the lowest versions that pyproject.toml admits, in .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python .github/lowest.py)

clean:
	rm -rf $(VENV) dist
