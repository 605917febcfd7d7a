# Everything from a clean clone, with Python 3.11 or later, make and g++ alone: each target makes the virtual environment it needs.
# Another Python: make test PYTHON=python3.13 VENV=.venv-newest

MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
JOBS := $(shell getconf _NPROCESSORS_ONLN)
BIN := $(VENV)/bin
SANITIZERS := thread address,undefined
CPP := $(foreach folder,ffi cpu cuda/plans cuda/launcher tests/cpp tests/emulation,$(wildcard $(folder)/*.h $(folder)/*.cc))
EXTRA = $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"])'

.PHONY: help setup demo test python-test cpp-test $(SANITIZERS:%=cpp-test-%) lint format bench gpu clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    registers two photographs by mutual information, and plots it"
	@echo "make test    the linters, the C++ tests under sanitizers and the Python tests"
	@echo "make bench   the benchmarks of every family, against every alternative on this machine (BENCH_ARGS=--quick: a smoke run)"
	@echo "make gpu     on a machine with a GPU: build, tests, compute-sanitizer, benchmarks, in nine minutes and without a network"
	@echo "also: setup, lint, format, cpp-test, python-test, clean"

demo: $(VENV)/package
	$(BIN)/python examples/registration.py

test: lint cpp-test python-test

python-test: $(VENV)/package
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --durations=20 --ignore=tests/gpu $(PYTEST_ARGS)

bench: $(VENV)/package
	set -e; for suite in hist scan reduce segment; do $(BIN)/python -m bench $$suite $(BENCH_ARGS); done

# On a machine with a GPU, by the Python that is there, its packages and no network: build, tests, compute-sanitizer, benchmarks.
gpu:
	$(PYTHON) bench/gpu_run.py $(GPU_ARGS)

cpp-test: $(SANITIZERS:%=cpp-test-%)

$(SANITIZERS:%=cpp-test-%): cpp-test-%: $(VENV)/package
	@$(BIN)/cmake -S . -B build/cpp-$* -DJAXPRIMS_CXX_TESTS=ON -DJAXPRIMS_SANITIZE=$(filter-out none,$*) >/dev/null
	$(BIN)/cmake --build build/cpp-$* --parallel $(JOBS)
	build/cpp-$*/drivers_test

# clang-tidy reads the C++ tests' compile database: they include every header of cpu/ and need no JAX.
lint: $(VENV)/linters
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	@$(BIN)/cmake -S . -B build/cpp-none -DJAXPRIMS_CXX_TESTS=ON -DJAXPRIMS_SANITIZE= >/dev/null
	printf '%s\n' $(filter tests/cpp/%.cc,$(CPP)) | xargs -n 1 -P $(JOBS) $(BIN)/clang-tidy --quiet -p build/cpp-none

format: $(VENV)/linters
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

setup: $(VENV)/package $(VENV)/linters

$(VENV)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

# Editable: Python files are used where they lie; a change to the C++ half builds it again.
$(VENV)/package: pyproject.toml CMakeLists.txt $(wildcard ffi/* cpu/* cuda/*/* cuda/*/*/*) | $(VENV)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,demo,bench,nvrtc]'
	touch $@

$(VENV)/linters: pyproject.toml | $(VENV)/package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$($(call EXTRA,lint))
	touch $@

clean:
	rm -rf .venv .venv-* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache bench/build examples/out jaxprims/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
