# Everything from a clean clone, with Python 3.11 or later, make and g++ alone: each target makes the virtual environment it needs.
# Another Python: make test PYTHON=python3.13 VENV=.venv-newest

MAKEFLAGS += --no-print-directory
# The tests start many processes: none compiles the Python of its libraries again.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test demo bench nvrtc
JOBS := $(shell getconf _NPROCESSORS_ONLN)
BIN := $(VENV)/bin
SANITIZERS := address,undefined thread
LINTED := build/cpp-address,undefined
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
SIDE_BY_SIDE = $(MAKE) --jobs $(JOBS) $(if $(filter output-sync,$(.FEATURES)),--output-sync=line)
CPP := $(foreach folder,ffi cpu cuda/plans cuda/launcher tests/cpp tests/emulation,$(wildcard $(folder)/*.h $(folder)/*.cc))
# $(call REQUIREMENTS,names): of extras, of jaxprims itself ("needed") and of its build ("build"), whose jaxlib is the one in use.
REQUIREMENTS = $(BIN)/python -c 'import sys, tomllib; t = tomllib.load(open("pyproject.toml", "rb")); p = t["project"]; \
  known = {**p["optional-dependencies"], "needed": p["dependencies"], "build": t["build-system"]["requires"]}; \
  print(*(f"\"{r}\"" for name in sys.argv[1:] for r in known[name] if not r.startswith("jaxlib==")))' $(1)

NOTEBOOKS := $(patsubst docs/notebooks/%.md,build/notebooks/%.ipynb,$(wildcard docs/notebooks/*.md))

.PHONY: help setup demo test test-all python-test cpp-test $(SANITIZERS:%=cpp-test-%) lint lint-python lint-cpp format bench gpu docs gallery wheels wheels-in-containers clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    registers two photographs by mutual information, and plots it"
	@echo "make test    the linters, the C++ tests under sanitizers and the Python tests (test-all: every case of them)"
	@echo "make bench   the benchmarks of every family, against every alternative on this machine (BENCH_ARGS=--quick: a smoke run)"
	@echo "make gpu     on a machine with a GPU: build, tests, compute-sanitizer, benchmarks, in nine minutes and without a network"
	@echo "make docs    the site, its notebooks executed, in build/site; make gallery runs the examples anew for it, in five minutes"
	@echo "make wheels  an sdist and wheels for the Pythons that are there, in dist, each of them installed and tried"
	@echo "also: setup, lint, format, cpp-test, python-test, clean"

demo: $(VENV)/package
	$(BIN)/python examples/registration.py

# What needs no package is done while packages are installed, which keeps one process waiting; the Python tests, the longest, start
# when one of the others is left, and have both processes soon.
test:
	@$(SIDE_BY_SIDE) setup $(SANITIZERS:%=cpp-test-%) lint-cpp lint-python python-test

test-all:
	@JAXPRIMS_CASES=all $(MAKE) test

python-test: $(VENV)/package
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --durations=20 --ignore=tests/gpu $(PYTEST_ARGS)

bench: $(VENV)/package
	set -e; for suite in hist scan reduce segment stencil everyday drawn fuse; do $(BIN)/python -m bench $$suite $(BENCH_ARGS); done

# On a machine with a GPU, by the Python that is there, its packages and no network: build, tests, compute-sanitizer, benchmarks.
gpu:
	$(PYTHON) bench/gpu_run.py $(GPU_ARGS)

# Strict: a link that leads nowhere is an error.
docs: $(VENV)/package $(VENV)/docs
	@$(SIDE_BY_SIDE) $(NOTEBOOKS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

build/notebooks/%.ipynb: docs/notebooks/%.md $(VENV)/package $(VENV)/docs
	@mkdir -p $(@D)
	$(BIN)/jupytext --quiet --to ipynb --execute --output $@ $< 2>$@.log || { cat $@.log; exit 1; }

# An sdist and wheels, each installed where no compiler is, with the oldest JAX and the newest (WHEELS_ARGS=--quick: the newest).
wheels:
	$(PYTHON) .ci/wheels.py $(WHEELS_ARGS)

# The wheels that everybody can use, by cibuildwheel; on Linux it wants Docker.
wheels-in-containers: | $(VENV)/python
	$(PIP) "cibuildwheel>=3"
	$(BIN)/cibuildwheel --output-dir dist

gallery: $(VENV)/package $(VENV)/docs
	$(BIN)/python docs/site/gallery.py

cpp-test: $(VENV)/cmake
	@$(SIDE_BY_SIDE) $(SANITIZERS:%=cpp-test-%)

$(SANITIZERS:%=cpp-test-%): cpp-test-%: build/cpp-%/compile_commands.json
	$(BIN)/cmake --build build/cpp-$* --parallel $(JOBS)
	build/cpp-$*/drivers_test

build/cpp-%/compile_commands.json: CMakeLists.txt | $(VENV)/cmake
	$(BIN)/cmake -S . -B $(@D) -DJAXPRIMS_CXX_TESTS=ON -DJAXPRIMS_SANITIZE=$* >/dev/null
	touch $@

lint: $(VENV)/linters
	@$(SIDE_BY_SIDE) lint-cpp lint-python

lint-python: $(VENV)/linters
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# clang-tidy reads the C++ tests as they are compiled, in a few units that include every header of cpu/ and need no JAX.
lint-cpp: $(LINTED)/compile_commands.json $(VENV)/linters
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	printf '%s\n' $(LINTED)/CMakeFiles/drivers_test.dir/Unity/*.cxx | xargs -n 1 -P $(JOBS) $(BIN)/clang-tidy --quiet -p $(LINTED)

format: $(VENV)/linters
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

setup: $(VENV)/package $(VENV)/linters

$(VENV)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

# The C++ tests want no other package.
$(VENV)/cmake: | $(VENV)/python
	$(call REQUIREMENTS,test) | xargs -n 1 | grep '^cmake' | xargs $(PIP)
	touch $@

$(VENV)/requirements: pyproject.toml | $(VENV)/cmake
	$(call REQUIREMENTS,build needed $(EXTRAS)) | xargs $(PIP)
	touch $@

# Editable: Python files are used where they lie; a change to the C++ half builds it again.
$(VENV)/package: $(VENV)/requirements CMakeLists.txt $(wildcard ffi/* cpu/* cuda/*/* cuda/*/*/*)
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PIP) --no-deps --no-build-isolation --config-settings=cmake.define.JAXPRIMS_STRICT=ON --editable .
	touch $@

$(VENV)/linters: pyproject.toml | $(VENV)/requirements
	$(call REQUIREMENTS,lint) | xargs $(PIP)
	touch $@

$(VENV)/docs: pyproject.toml | $(VENV)/requirements
	$(call REQUIREMENTS,docs) | xargs $(PIP)
	touch $@

clean:
	rm -rf .venv .venv-* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache bench/build examples/out jaxprims/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
