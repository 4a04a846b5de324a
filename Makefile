# watersmeet: every target sets up what it needs on its first run (see scripts/setup.sh).
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
OUT ?= out/demo
export VENV
# small matrices on few cores: more threads than cores only make tests wait for each other
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# a process for each core; the tests of one file stay together, since they share what they make
SPREAD ?= -n auto --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-wheel lint format typecheck bench dist clean links arrows

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

setup: ## virtual environment, libraries, developer tools and a browser, nothing else
	@scripts/setup.sh dev
	@scripts/setup.sh browser

demo: ## turn examples/demo.png into code and say where the report is
	@scripts/setup.sh runtime
	@scripts/setup.sh browser || echo "demo: going on without a browser: code is written, nothing is rendered"
	@env -u OMP_NUM_THREADS $(VENV)/bin/watersmeet run screenshot-to-code examples/demo.png --out $(OUT)
	@echo "report: $(abspath $(OUT))/report.html"

test: ## the test suite, without tests marked slow
	@scripts/setup.sh dev
	@scripts/setup.sh browser
	$(PY) -P -m pytest -q -m "not slow" $(SPREAD) $(PYTEST_ARGS)

test-all: ## the test suite with the slow tests
	@scripts/setup.sh dev
	@scripts/setup.sh browser
	$(PY) -P -m pytest -q $(SPREAD) $(PYTEST_ARGS)

test-wheel: ## build sdist and wheel, and run the suite against the installed wheel
	@scripts/setup.sh dev
	@scripts/setup.sh browser
	@scripts/test_wheel.sh $(SPREAD) $(PYTEST_ARGS)

lint: arrows ## ruff (lint and format) and the import arrows
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

arrows: links
	@scripts/setup.sh dev
	PYTHONPATH=.links $(VENV)/bin/lint-imports --no-cache --no-logo

format: ## rewrite the sources the way lint wants them
	@scripts/setup.sh dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

typecheck: links ## mypy, strict, over the whole package
	@scripts/setup.sh dev
	MYPYPATH=.links $(PY) -m mypy -p watersmeet

bench: ## speed of the operators beside their peers, and scores beside the baselines
	@scripts/setup.sh dev
	@scripts/setup.sh browser
	@$(VENV)/bin/watersmeet data fetch --split val
	@env -u OMP_NUM_THREADS $(VENV)/bin/watersmeet bench kernels
	@env -u OMP_NUM_THREADS $(VENV)/bin/watersmeet bench screenshot-to-code

dist: ## sdist and wheel in dist/
	@scripts/setup.sh dev
	@rm -rf build dist && $(PY) -m build --no-isolation --outdir dist . >/dev/null && ls dist

# The rooms under their import names, for tools that read files and do not follow an editable install.
links:
	@mkdir -p .links/watersmeet
	@for entry in core kernels plugins tokenizers pipelines; do ln -sfn ../../$$entry .links/watersmeet/$$entry; done
	@for entry in src/watersmeet/*; do \
	  case $$entry in *__pycache__) ;; *) ln -sfn ../../$$entry .links/watersmeet/$${entry##*/} ;; esac; done

clean: ## remove the environment and everything that was built; data/, runs/ and out/ stay
	rm -rf $(VENV) .venv-wheel .links build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
