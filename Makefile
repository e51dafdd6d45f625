# Each target does all its own set-up: python3 (3.11 or newer), a C++17 compiler and make are enough.
# What was done is remembered by stamp files, so that a target repeated without changes does nothing twice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
SANITIZE_VENV := .venv-sanitize
EMULATE_VENV := .venv-emulate
# One job per core, unless JOBS says otherwise.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

NATIVE_SOURCES := CMakeLists.txt pyproject.toml README.md LICENSE $(wildcard native/*)
SOURCES := $(NATIVE_SOURCES) $(shell find src -type f -not -path '*/__pycache__/*')
PIP_INSTALL := pip install --quiet --disable-pip-version-check
# Without isolation the build finds the same cmake and nanobind each time, and compiles only what has changed.
BUILD := $(PIP_INSTALL) --no-build-isolation --no-deps --force-reinstall

DEMO_MODEL := qwen2.5-coder-1.5b
# What the registry names as its drafter.
DEMO_DRAFTER := qwen2.5-coder-0.5b
DEMO_PROMPT := Write a Python function that returns the n-th Fibonacci number, with a docstring.
TEST_MODEL := smollm2-135m

.PHONY: setup demo test test-models check fix bench peers sanitize emulate nightly clean

setup: $(STAMPS)/package

demo: $(STAMPS)/package
	$(BIN)/foredraft pull $(DEMO_MODEL) $(DEMO_DRAFTER)
	$(BIN)/foredraft run -m $(DEMO_MODEL) --compare -n 200 "$(DEMO_PROMPT)"

# Tests on the larger models run where these are in the cache, but once where test-models follows anyway.
test: $(STAMPS)/package $(STAMPS)/test
	$(BIN)/foredraft pull $(TEST_MODEL)
	$(BIN)/python -m pytest -m "not nightly$(if $(filter test-models,$(MAKECMDGOALS)), and not models)"

test-models: $(STAMPS)/package $(STAMPS)/test
	$(BIN)/foredraft pull --all
	$(BIN)/python -m pytest -m "models and not nightly"

check: $(STAMPS)/package $(STAMPS)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python scripts/budget.py

fix: $(STAMPS)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMPS)/package peers
	$(BIN)/foredraft pull $(DEMO_MODEL)
	$(BIN)/foredraft bench -m $(DEMO_MODEL) --peer peers/llama-bench

peers:
	PYTHON=$(PYTHON) JOBS=$(JOBS) scripts/peers.sh

# The tests that reach native code, once, under AddressSanitizer and UBSan (those with PyTorch as their oracle stay
# out: it is not built for this). Python itself never frees everything, so leaks are not looked for. libstdc++ is
# loaded first because AddressSanitizer must find the function that throws before the module is loaded.
SANITIZE_TESTS = $(shell grep -lrE '_native|NativeTarget|LLM' tests --include='test_*.py' | xargs grep -LE 'torch|transformers')
sanitize: $(SANITIZE_VENV)/stamp
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(SANITIZE_VENV)/bin/python -m pytest -p no:cacheprovider --capture=sys -m "not models and not slow and not nightly" $(SANITIZE_TESTS)

# The invariance tests with the AVX-512 and AVX-VNNI kernels emulated by SIMDe (Debian: libsimde-dev), for machines
# that lack these instructions: the same source, its bits compared with AVX2 and scalar.
emulate: $(EMULATE_VENV)/stamp
	$(EMULATE_VENV)/bin/python -m pytest -p no:cacheprovider -m "not models and not slow and not nightly" tests/native

nightly: $(STAMPS)/package $(STAMPS)/test
	$(BIN)/foredraft pull --all
	$(BIN)/python -m pytest -m nightly

clean:
	rm -rf build dist $(VENV) $(SANITIZE_VENV) $(EMULATE_VENV)

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "foredraft needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

# cmake and ninja come from PyPI: the machine need not have them.
$(STAMPS)/base: pyproject.toml scripts/requires.py | $(STAMPS)/venv
	$(BIN)/$(PIP_INSTALL) cmake ninja $$($(BIN)/python scripts/requires.py build base)
	touch $@

$(STAMPS)/package: $(SOURCES) | $(STAMPS)/base
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/$(BUILD) .
	touch $@

$(STAMPS)/dev $(STAMPS)/test: $(STAMPS)/%: pyproject.toml scripts/requires.py | $(STAMPS)/venv
	$(BIN)/$(PIP_INSTALL) $$($(BIN)/python scripts/requires.py $*)
	touch $@

# A second build of the native module in a virtual environment of its own: $(call other_build,VENV,FOLDER,OPTIONS)
define other_build
$(PYTHON) -m venv $(1)
$(1)/bin/$(PIP_INSTALL) cmake ninja pytest hypothesis gguf $$($(PYTHON) scripts/requires.py build base)
PATH="$(CURDIR)/$(1)/bin:$$PATH" $(1)/bin/$(BUILD) -C build-dir=build/$(2) -C install.strip=false $(3) .
touch $@
endef

$(SANITIZE_VENV)/stamp: $(SOURCES) scripts/requires.py
	$(call other_build,$(SANITIZE_VENV),sanitize,-C cmake.define.FOREDRAFT_SANITIZE=ON)

$(EMULATE_VENV)/stamp: $(SOURCES) scripts/requires.py tests/native/emulated_intrinsics.hpp
	$(call other_build,$(EMULATE_VENV),emulate,-C cmake.define.FOREDRAFT_EMULATE=ON)
