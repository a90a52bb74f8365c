# make run    everything from nothing to the demo's table
# make test   everything from nothing to the test results
# make docs   the documents as a site in site/, which opens from disk
# make page   the page of the service built anew from page/ (needs Node 20)
# make serve  a page to teach models on: open http://127.0.0.1:8000
# make check  what CI runs: format, lint, strict types, imports, tests (which build the documents)

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test check lint docs page serve setup clean

run: setup
	@echo "training two denoisers on real features: this takes minutes"
	$(BIN)/wdae demo

# Tests start many processes: compiled once, here, where the environment forbids Python to do it by itself.
test: setup
	$(BIN)/python -m compileall -q src
	$(BIN)/pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

page: setup
	$(BIN)/python scripts/build_page.py

serve: setup
	$(BIN)/wdae serve

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

check: lint test

setup: $(STAMP)

# uv installs several times faster than pip; it is told where pip finds local wheels, if anywhere.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" $(BIN)/uv pip install --quiet --compile-bytecode \
		--python $(BIN)/python -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache build dist runs
