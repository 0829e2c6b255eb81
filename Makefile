# Everything runs in .venv, which is made on first use. torch goes in first and pinned: with it in place nothing pulls another build.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
READY := $(VENV)/.ready

.PHONY: demo test test-gpu lint types check clean

demo: $(READY)
	$(BIN)/graphdedup demo

test: $(READY)
	$(BIN)/python -m pytest

# On a machine with a GPU, in an environment that holds a CUDA build of torch: make test-gpu PYTHON=python3 BIN=$$(dirname $$(which python3))
test-gpu:
	$(BIN)/python -m pytest -m gpu

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

$(READY): pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
