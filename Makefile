# Sets up .venv on first use and runs the workflow or the tests in it. All else is Snakemake.

PYTHON ?= python3
READY := .venv/.ready
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: finetune eval generate test test-faults lint format docs lock

finetune eval generate: $(READY)
	snakemake --cores all $@

test: $(READY)
	python -m pytest

# Kills whole workflows, again and again: an hour or more on two cores.
test-faults: $(READY)
	python -m pytest -m faults

lint: $(READY)
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	mypy
	snakemake --lint

format: $(READY)
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

docs: $(READY)
	python -m moray.config.reference

# The lock names versions alone, so that each machine takes them from its own package index.
lock:
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install torch==2.13.0
	.venv-lock/bin/pip install setuptools .[dev]
	.venv-lock/bin/python envs/lock.py
	rm -rf .venv-lock

$(READY): envs/requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON): got Python %d.%d, expected 3.11 or newer; set PYTHON=python3.11, say" % sys.version_info[:2])'
	@echo "setting up .venv from envs/requirements.txt; this takes a minute or more"
	$(PYTHON) -m venv .venv
	python -m pip install --disable-pip-version-check --quiet -r envs/requirements.txt
	python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $@
