# What to run on one machine. Everything it makes lies below .local/, except Debian packages.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: resume-matrix learning parity test-megatron-next help demo test test-all faults check unit peers stop status clean lint lock up env

PYTHON ?= python3
VENV := .local/venv/bin
NEXT := .local/venv-megatron-next/bin
LOCAL := $(PYTHON) -m local
RECIPE ?= quickstart
METHOD ?=
AUTO ?=
PYTEST ?= -q

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Variables: RECIPE=quickstart|tiny|…  METHOD=dpo|ppo  AUTO=1 (nobody is asked)  TORCH_INDEX=<source of torch builds>"

demo: ## The whole chain: from nothing to an approved model
	$(LOCAL) demo --recipe '$(RECIPE)' $(if $(METHOD),--method '$(METHOD)') $(if $(filter-out 0 no false,$(AUTO)),--auto)

up: ## Start the local stack: Slurm, MLflow, the annotation service, Airflow
	$(LOCAL) up

stop: ## Stop what `make demo` or `make up` started, and nothing else
	$(LOCAL) down

status: ## What runs, and where
	@$(LOCAL) status

env: ## The stack's environment, for: eval "$(make -s env)"
	@$(LOCAL) env

clean: ## Stop, then remove runs, databases and passwords; ALL=1: environments and downloads too
	$(LOCAL) clean $(if $(ALL),--all)

test: check ## Set up what is needed, then all checks and all tests
	$(VENV)/python -m pytest -m 'not slow' $(PYTEST)

test-all: check ## The same, and the slow tests
	$(VENV)/python -m pytest $(PYTEST)

unit: ## The tests that need no service
	$(VENV)/python -m pytest $(PYTEST) -m "not slurm and not e2e and not browser"

faults: ## Slurm provider: every accident at every point of the protocol; the table also goes to .local/faults.md
	$(LOCAL) install --dev
	SLURM_FAULTS_TABLE=.local/faults.md $(VENV)/python -m pytest tests/airflow_slurm/faults $(PYTEST)

resume-matrix: ## Kill and resume every trainer at every moment, ranks and ZeRO stage, and compare the bits; goes on where it was cut off
	PYTHONPATH=.:plugins $(VENV)/python -m tests.training.resume_matrix

learning: ## Three seeds of each kind of training on held-out problems: a table, and the plot of docs/benchmarks.md
	PYTHONPATH=.:plugins $(VENV)/python -m benchmarks.training.learning --plot docs/images/learning

test-megatron-next: ## The tests of Megatron, PPO and generation on Python 3.12 and the next Megatron-core, in an environment of their own
	$(LOCAL) megatron-next
	ALIGN_CLUSTER_PYTHON=$(CURDIR)/$(NEXT)/python $(NEXT)/python -m pytest tests/training/test_megatron*.py tests/training/test_ppo*.py tests/training/test_generate*.py $(PYTEST)

check: ## Set up what is needed, then formatting, types and imports
	$(LOCAL) install --dev
	$(MAKE) --no-print-directory lint

lint: ## Formatting, types and imports alone
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	PYTHONPATH=.:plugins $(VENV)/lint-imports --no-cache

peers: ## Other trainers, for parity tests and benchmarks, in an environment of their own
	$(LOCAL) peers

parity: peers ## Losses, log-probabilities and gradients beside TRL's, on small models and on SmolLM2-135M
	$(LOCAL) install --dev
	$(LOCAL) fetch
	$(VENV)/python -m pytest tests/training/test_parity.py tests/training/test_parity_real.py $(PYTEST)

lock: ## Resolve requirements/*.in to exact versions; UPGRADE=1: the newest
	$(LOCAL) lock $(if $(UPGRADE),--upgrade)

