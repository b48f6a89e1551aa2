# Sets up .venv on first use and runs the workflow or the tests in it. Use Snakemake for the rest.

# Neither Snakemake nor Ray quotes the path of Python.
ifneq ($(words $(CURDIR)),1)
$(error $(CURDIR): the path has a space, so jobs can't start Python; move the clone)
endif

PYTHON ?= python3
READY := .venv/.ready
READY_DEV := .venv/.ready-dev
# pip's warnings are in the log, and on the terminal if it fails.
PIP_LOG := .venv/pip.log
# Python compiles the modules that are imported when they first are; compiling all takes a minute.
pip = python -m pip install --disable-pip-version-check --quiet --no-compile $(1) 2>> $(PIP_LOG) || { cat $(PIP_LOG) >&2; exit 1; }
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Containers often set it, and then each of the many processes would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: finetune eval generate smoke-test test test-long test-all code-lock golden lint format docs site reports lock

finetune eval generate: $(READY)
	snakemake --cores all $@

# A table of what a machine or a cluster can do; `make smoke-test ADDRESS=auto SIZE_GB=1 WORKERS=4`.
ADDRESS ?= local
SIZE_GB ?= 0.02
WORKERS ?= 2

smoke-test: $(READY)
	snakemake --cores all smoke_test --forcerun smoke_test --configfile config/smoke-test.yaml \
		--config address=$(ADDRESS) size_gb=$(SIZE_GB) workers=$(WORKERS)

# Three processes, even on two cores: much of the time, tests wait for subprocesses. The tests of a
# file run in one process and in order, because they share slow fixtures.
PYTEST := python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(READY_DEV)
	$(PYTEST)

# Slow tests, of seconds to minutes, as many as a change waits for.
test-long: $(READY_DEV)
	$(PYTEST) -m "long and not release" --durations=60

# Before a release; hours. The last ones kill whole workflows many times, one after another.
test-all: test test-long
	python -m pytest -m release --durations=60

# Which modules a release has, so that a clone knows its own edits; after each change of the package.
code-lock: $(READY)
	python -m moray.provenance.edits

# The results of small runs of each stage; refused if they changed under the same version.
golden: $(READY_DEV)
	PYTHONPATH=tests python -m golden.recorded

lint: $(READY_DEV)
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	mypy
	snakemake --lint

format: $(READY_DEV)
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

docs: $(READY)
	python -m moray.config.reference

# The documentation, in build/site; links that lead nowhere are errors.
site: $(READY_DEV)
	mkdocs build --strict

# For the site: the reports of the default experiment and of a sweep over it. Minutes.
reports: $(READY)
	rm -rf build/reports
	mkdir -p build/reports
	cd build/reports && moray init project
	cp docs/sweep.yaml build/reports/project/config
	cd build/reports/project && snakemake report && cp results/report.html ../default.html
	cd build/reports/project && snakemake report --configfile config/sweep.yaml \
		&& cp results/report.html ../sweep.html

# The lock files only name versions, so that each machine can use its own package index.
lock:
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install torch==2.13.0
	.venv-lock/bin/pip install setuptools .[vision]
	.venv-lock/bin/python envs/lock.py
	.venv-lock/bin/pip install --constraint envs/requirements.txt .[dev]
	.venv-lock/bin/python envs/lock.py dev
	rm -rf .venv-lock

$(READY): envs/requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON): got Python %d.%d, expected 3.11 or newer; set PYTHON=python3.11, for example" % sys.version_info[:2])'
	@echo "setting up .venv from $<; this takes a minute or more"
	@$(PYTHON) -m venv .venv
	@$(call pip,-r $<)
	@$(call pip,--no-deps --no-build-isolation -e .)
	@touch $@

# Test dependencies are kept separate: boto3 alone slows down each start of Snakemake by 0.15 s.
$(READY_DEV): $(READY) envs/requirements-dev.txt
	@echo "adding envs/requirements-dev.txt to .venv"
	@$(call pip,-r envs/requirements-dev.txt)
	@touch $@
