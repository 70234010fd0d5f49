# `make demo` and `make test` set everything up by themselves.
# They use uv when it is there and python3 -m venv when it is not.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
READY  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench clean

help:  ## Show what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# A virtual environment with the package (editable) and its development tools.
$(READY): pyproject.toml
ifdef UV
	test -x $(BIN)/python || uv venv --python $(PYTHON) $(VENV)
	uv pip install --quiet --python $(BIN)/python -e '.[dev]'
else
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
endif
	@touch $@

demo: $(READY)  ## Ask a question: on your account if there is a key, else on the offline stand-in.
	@$(BIN)/python examples/demo.py

test: $(READY)  ## Run all tests offline (real bridge, stand-in cloud).
	$(BIN)/python -m pytest

lint: $(READY)  ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## Rewrite the code in the project's style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Run the benchmarks and print their ratios.
	$(BIN)/python -m benchmarks

clean:  ## Remove the virtual environment and caches.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
