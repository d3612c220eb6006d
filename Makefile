# The CPU build of torch; README.md says how to name one where the package index serves CUDA builds.
TORCH ?= torch==2.13.0
MODEL ?= smollm2-135m
PROMPT ?= Explain in three sentences how a water mill works.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install

ifneq ($(wildcard ../shared/data),)
export HEADRACE_SHARED_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test check clean
.DEFAULT_GOAL := check

demo: $(VENV)/.runs
	$(BIN)/headrace generate --model $(MODEL) "$(PROMPT)"

test: $(VENV)/.develops
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(VENV)/.develops
	$(BIN)/ruff check

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	python3 -m venv $(VENV)

$(VENV)/.runs: $(BIN)/python pyproject.toml
	$(PIP) "$(TORCH)" -e ".[torch]"
	touch $@

$(VENV)/.develops: $(BIN)/python pyproject.toml
	$(PIP) "$(TORCH)" -e ".[torch,dev]"
	touch $@ $(VENV)/.runs
