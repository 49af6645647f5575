# Every routine task is a target here, and CI runs the same ones. `make` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check install
COMPILE := $(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header --quiet
STATIC := check-format check-lint check-types check-imports check-generated \
	check-proto-lint check-proto-breaking

.DEFAULT_GOAL := help
.PHONY: help setup check static $(STATIC) format generate baseline requirements unit engine \
	images test test-load test-faults conformance demo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv: pinned tools and libraries, and the project itself, editable

# The lock closes the race of two targets (or two terminals) that find the same stale environment.
$(READY): requirements-dev.txt pyproject.toml
	@exec 9> .venv.lock && flock 9 && \
	if [ -e $(READY) ] && [ $(READY) -nt requirements-dev.txt ] && [ $(READY) -nt pyproject.toml ]; \
	then exit 0; fi; \
	set -e; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "setup: $(PYTHON) is older than 3.11; name another with PYTHON=..." >&2; exit 1; }; \
	if ! $(BIN)/python -m pip --version > /dev/null 2>&1; then \
	echo "setup: $(VENV), with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); fi; \
	if [ -t 1 ]; then quiet=; else quiet=-qq; fi; \
	echo "setup: the pinned tools and libraries"; \
	$(PIP) $$quiet --require-hashes -r requirements-dev.txt; \
	echo "setup: the project, editable"; \
	$(PIP) -qq --no-deps --no-build-isolation --editable .; \
	touch $(READY)

# Runs every step even after one failed: a person wants to see all that is wrong at once.
define run_steps
	@failed=; begun=$$(date +%s); \
	for step in $(1); do \
	echo "== $$step"; $(MAKE) --no-print-directory $$step || failed="$$failed $$step"; \
	done; \
	echo "== $$(( $$(date +%s) - begun )) s"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi
endef

check: setup ## what needs no Docker: format, lint, types, imports, contract, unit tests
	$(call run_steps,$(STATIC) unit)

static: setup ## the same without the tests
	$(call run_steps,$(STATIC))

check-format: setup
	@$(BIN)/ruff format --check --quiet . || \
	{ $(BIN)/ruff format --check . ; echo "hint: \`make format\`" >&2; exit 1; }

check-lint: setup
	@$(BIN)/ruff check .

check-types: setup
	@$(BIN)/mypy

check-imports: setup
	@$(BIN)/lint-imports --no-logo

check-generated: setup
	@proto/generate.sh --check

check-proto-lint: setup
	@cd proto && ../$(BIN)/buf lint

check-proto-breaking: setup
	@cd proto && ../$(BIN)/buf breaking --against baseline/sandbox_adapter.v1.binpb

format: setup ## rewrite the sources in the project's format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

generate: setup ## regenerate the Python code beside the .proto files
	@proto/generate.sh

baseline: setup ## make today's contract the one that breaking changes are measured against
	@cd proto && mkdir -p baseline && ../$(BIN)/buf build -o baseline/sandbox_adapter.v1.binpb

requirements: setup ## pin anew what pyproject.toml asks for
	@$(COMPILE) --upgrade -o requirements.txt
	@$(COMPILE) --upgrade --group dev -c requirements.txt -o requirements-dev.txt

unit: setup ## the tests that need no Docker
	@$(BIN)/pytest -q -n 4 --dist loadfile -m "not docker" tests/unit

engine: ## find a container engine, or install and start one
	@deploy/engine/ensure.sh

images: setup engine ## build the toolbox and the base image; nothing to do, nothing done
	@$(BIN)/python images/build.py

conformance: setup images ## the kit against every kind of sandbox, as a table
	@$(BIN)/python tests/conformance/run.py

test-load: setup images ## a hundred thousand calls, 300 sessions, a file of 5 GB, a tree of 50,000 files, in containers
	@$(BIN)/python tests/load/run.py

test-faults: setup images ## kills and stalls at every named step, a thousand and more, on an engine of its own
	@$(BIN)/python tests/faults/run.py

# In the order of the folders: the longest file, the kit on every kind, is in the first of them.
test: setup images ## the whole suite, in containers
	@$(BIN)/pytest --require-engine -n 2 --dist loadfile --no-loadscope-reorder

# Exit 3 means that no engine can be had here; the demo then says so and uses the local backend.
demo: setup ## watch an agent repair a real package in a container
	@code=0; deploy/engine/ensure.sh || code=$$?; \
	if [ $$code -eq 0 ]; then $(BIN)/python images/build.py || exit $$?; \
	elif [ $$code -ne 3 ]; then exit $$code; fi; \
	exec $(BIN)/python tests/demo/run.py

clean: ## remove what the targets left in this folder (images and engine stay)
	@rm -rf $(VENV) .venv.lock .build .cache dist .mypy_cache .pytest_cache .ruff_cache \
	.import_linter_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +
