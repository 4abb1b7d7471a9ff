# The commands of the project. Everything lives in .venv; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: demo test test-native test-systems check bench clean

demo: $(STAMP)
	@$(BIN)/nndiff demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # torch threads beside two workers only get in each other's way

# The tests that need other environments: one with NeMo, one with next to nothing, and with OLD_TORCH=2.2.2 a third.
test-systems: $(STAMP) .venv-nemo/.ready .venv-bare/.ready $(if $(OLD_TORCH),.venv-bare-$(OLD_TORCH)/.ready)
	NNDIFF_SYSTEMS=1 $(BIN)/python -m pytest tests/systems

# The native engine built apart, with every read and write of it watched.
SANITIZED := build/sanitized
test-native: $(STAMP)
	rm -rf $(SANITIZED)
	NNDIFF_SANITIZE=1 $(BIN)/python setup.py -q build_ext --build-lib $(SANITIZED) --build-temp $(SANITIZED)/temp
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    NNDIFF_ENGINE=native NNDIFF_SANITIZED=$(abspath $(SANITIZED)) $(BIN)/python -m pytest -n 2 tests/stats -p no:cacheprovider

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@for example in $(wildcard examples/*); do echo $(BIN)/mypy $$example; $(BIN)/mypy $$example || exit 1; done  # each has its own modules

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py $(RECORD)

clean:
	rm -rf $(VENV) .venv-nemo .venv-bare* build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and by its exact version: asked for as a range, pip would take a far larger build.
$(STAMP): pyproject.toml constraints.txt $(wildcard setup.py src/nndiff/stats/native/*)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,report]'
	@touch $(STAMP)

PIP = -m pip install -qq --disable-pip-version-check

# What the benchmarks measure against, beside what is there already.
$(VENV)/.bench: $(STAMP)
	@$(BIN)/python $(PIP) -c constraints.txt -e '.[bench]'
	@touch $@

.venv-nemo/.ready: constraints-nemo.txt
	@test -x .venv-nemo/bin/python || $(PYTHON) -m venv .venv-nemo
	@echo "setting up .venv-nemo (the first time takes about three minutes and 2.2 GB)"
	@.venv-nemo/bin/python $(PIP) -c constraints-nemo.txt torch==2.13.0
	@.venv-nemo/bin/python $(PIP) -c constraints-nemo.txt 'nemo_toolkit[asr]==3.0.0'
	@touch $@

.venv-bare/.ready: constraints.txt
	@test -x .venv-bare/bin/python || $(PYTHON) -m venv .venv-bare
	@echo "setting up .venv-bare"
	@.venv-bare/bin/python $(PIP) -c constraints.txt torch==2.13.0 numpy safetensors
	@touch $@

# Older builds of torch bring CUDA with them: 5 GB, so only when asked for. They know NumPy 1 alone.
.venv-bare-%/.ready:
	@test -x .venv-bare-$*/bin/python || $(PYTHON) -m venv .venv-bare-$*
	@echo "setting up .venv-bare-$* (5 GB)"
	@.venv-bare-$*/bin/python $(PIP) torch==$* 'numpy<2' safetensors
	@touch $@
