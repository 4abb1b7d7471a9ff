# The commands of the project. Everything lives in .venv; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: demo test check bench clean

demo: $(STAMP)
	@$(BIN)/nndiff demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and by its exact version: asked for as a range, pip would take a far larger build.
$(STAMP): pyproject.toml constraints.txt $(wildcard setup.py src/nndiff/stats/*.c)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,report]'
	@touch $(STAMP)
