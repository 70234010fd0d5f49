# `make demo` and `make test` set everything up by themselves.
# They use uv when it is there and python3 -m venv when it is not.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
READY  := $(VENV)/.installed
ifdef UV
MAKE_VENV := uv venv --python $(PYTHON)
INSTALL   := uv pip install --quiet --python $(BIN)/python
else
MAKE_VENV := $(PYTHON) -m venv
INSTALL   := $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-min test-wheels ray test-ray record spec coverage mutants lint format bench bench-ci clean

help:  ## Show what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# A virtual environment with the package (editable) and its development tools.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(MAKE_VENV) $(VENV)
	$(INSTALL) -e '.[dev]'
	@touch $@

demo: $(READY)  ## Ask a question: on your account if there is a key, else on the offline stand-in.
	@$(BIN)/python examples/demo.py

test: $(READY)  ## Run all tests offline (real bridge, stand-in cloud).
	$(BIN)/python -m pytest

test-fast: $(READY)  ## Run the tests that need neither bridge nor Node.
	$(BIN)/python -m pytest -m "not bridge"

record: $(READY)  ## Record the cassettes anew from the real bridge.
	$(BIN)/python -m pytest tests/behaviour -m cassette --record-mode=rewrite

spec: $(READY)  ## Print which clause of spec/ is proved by how many tests on which backend.
	$(BIN)/python -m tests.spec_matrix

# Python 3.10 or 3.11 have wheels of all the oldest versions.
MIN_VENV := .venv-min
test-min: $(READY)  ## Run the tests with the oldest versions that pyproject.toml allows.
	$(BIN)/python -m tests.lower_bounds > $(VENV)/oldest.txt
	test -x $(MIN_VENV)/bin/python || $(MAKE_VENV) $(MIN_VENV)
	$(subst $(BIN),$(MIN_VENV)/bin,$(INSTALL)) -r $(VENV)/oldest.txt -e .
	$(subst $(BIN),$(MIN_VENV)/bin,$(INSTALL)) --no-deps 'langchain-tests>=1.1,<2' pytest-codspeed numpy
	@# The cassettes are of the newest SDK.
	$(MIN_VENV)/bin/python -m pytest -m "not cassette" --ignore tests/behaviour/test_cassettes.py

test-wheels: $(READY)  ## Install wheel and sdist on each Python of this machine and use them there.
	$(BIN)/python -u -m tests.users.wheels

RAY_VENV := .venv-ray
ray:  ## Install Ray (0.6 GB) with the package, in an environment of its own.
	test -x $(RAY_VENV)/bin/python || $(MAKE_VENV) $(RAY_VENV)
	$(subst $(BIN),$(RAY_VENV)/bin,$(INSTALL)) -e '.[test,ray]'

test-ray: ray  ## Run the example that uses Ray.
	$(RAY_VENV)/bin/python -m pytest -m ray tests/examples

coverage: $(READY)  ## Run all tests and show which lines and branches none of them reaches.
	@# Under coverage's own hook a forked child of that test ends with 1.
	$(BIN)/python -m pytest --cov -n auto --deselect 'tests/bridge/test_processes.py::test_multiprocessing_children_answer_and_leave_nothing[fork]'

mutants: $(READY)  ## Break the pure modules in thousands of ways: do the tests notice? (An hour.)
	$(INSTALL) 'mutmut>=3.8,<4'
	HYPOTHESIS_PROFILE=mutants PYTHONPATH=fakes nice $(BIN)/mutmut run
	$(BIN)/python -m tests.mutation_score

lint: $(READY)  ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## Rewrite the code in the project's style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Run the benchmarks and print their ratios.
	$(BIN)/python -m benchmarks

bench-ci: $(READY)  ## Run the latency benchmark with a fifth of its delays, as CI does.
	LANGCHAIN_CURSOR_BENCH_SCALE=0.2 $(BIN)/python -m benchmarks bench_latency

clean:  ## Remove the virtual environment and caches.
	rm -rf $(VENV) $(MIN_VENV) $(RAY_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist mutants .coverage*
