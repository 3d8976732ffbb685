# Everything a person or a CI machine needs; only make and Python 3.11 to 3.14 are presumed.
# Each target sets up by itself. Other settings: make PYTHON=python3.12 setup, make simulate ARGS=...

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?= --hosts 4 --devices-per-host 2
TESTS ?= tests

.DEFAULT_GOAL := help
.PHONY: help setup simulate test check format bench lock clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: $(INSTALLED) ## Make .venv with the locked packages and this package in it

$(INSTALLED): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: $(PYTHON) was not found. Install Python 3.11 to 3.14, or name one: make PYTHON=/path/to/python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
	  echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1); meshfeed needs Python 3.11 to 3.14 (Ray has no builds for others). Name one: make PYTHON=/path/to/python3.12 setup" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "make: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing the locked packages into $(VENV): about 350 MB to download the first time"
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

simulate: $(INSTALLED) ## Run the main job here: Ray readers, 4 hosts x 2 devices, real text, a report
	$(BIN)/meshfeed simulate $(ARGS)

test: $(INSTALLED) ## Run the tests (some: make test TESTS=tests/unit)
	$(BIN)/python -m pytest $(TESTS)

check: $(INSTALLED) ## Lint, format check and types: what CI runs before the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

format: $(INSTALLED) ## Format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## Measure against the bare tokenizer, numpy and memcpy, side by side
	$(BIN)/python -m benchmarks

lock: $(INSTALLED) ## Write requirements.lock anew with the newest versions that fit pyproject.toml
	$(BIN)/python -m pip install --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --all-extras --group dev --universal \
	  --python-version 3.11 --fork-strategy fewest --generate-hashes \
	  --custom-compile-command "make lock" --output-file requirements.lock

clean: ## Remove what was built or cached here, the virtual environment too
	rm -rf $(VENV) build dist src/meshfeed.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
