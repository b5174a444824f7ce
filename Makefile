# SPDX-License-Identifier: Apache-2.0
# Two commands matter: `make demo` deploys a real model on the digital twin, `make test` passes the tests.
PYTHON ?= python3
DEMO ?=
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test proof check bench lint env clean plugin-check plugin-golden registry manifest hooks

demo:
	$(PYTHON) scripts/demo.py $(DEMO)

test: $(VENV)/.test-ready
	$(RUN) -m pytest -n 2 --dist loadfile --durations=12 --ignore=tests/cheats --ignore=tests/walker

# End to end: deployments that cheat are rejected by name, and a walk by `next:` lines alone reaches the verdict.
proof: $(VENV)/.test-ready
	$(RUN) -m pytest --durations=12 tests/cheats tests/walker

check: $(VENV)/.test-ready lint
	$(RUN) -m pytest -n 2 --dist loadfile -m "not slow" --ignore=tests/cheats --ignore=tests/walker

lint: $(VENV)/.test-ready
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

bench: $(VENV)/.test-ready
	$(RUN) -m tests.bench

env:
	$(PYTHON) scripts/environment.py

# What ships, file by file with its SHA-256: to be written anew with each commit that changes a shipped file.
manifest:
	$(PYTHON) -m pipeline.manifest --write

# git then runs hooks/pre_commit.py before each commit.
hooks:
	printf '#!/bin/sh\nexec python3 "$$(git rev-parse --show-toplevel)/hooks/pre_commit.py"\n' > "$$(git rev-parse --git-path hooks)/pre-commit"
	chmod +x "$$(git rev-parse --git-path hooks)/pre-commit"

# The plugin in the real client: fetched once from npm (402 MB) into .cache, run offline in an empty home.
plugin-check: $(VENV)/.test-ready
	$(RUN) -m pytest -o python_files='check_*.py' -n 2 --durations=5 tests/plugin_check

plugin-golden: $(VENV)/.test-ready
	$(RUN) -m tests.plugin_check.golden

# What the deployments here have verified becomes part of the pack: kernels/registry.jsonl.
registry:
	$(PYTHON) scripts/environment.py
	$(RUN) -m pipeline.registry --merge

# torch and transformers are for the tests alone.
$(VENV)/.test-ready: pyproject.toml scripts/environment.py
	$(PYTHON) scripts/environment.py
	$(RUN) scripts/environment.py --test
	touch $@

clean:
	rm -rf .cache .pytest_cache .ruff_cache
