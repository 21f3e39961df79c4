# Two commands on a fresh machine with Python 3.11+, pip and make:  make setup && make demo
# `make help` lists the targets. PYTHON=… chooses the interpreter of the virtual environment.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
OUT ?= out

# Data sets beside the checkout are used where they exist; without them the tests that need them skip and say so.
ifeq ($(origin ENERGYLM_DATA),undefined)
ifneq ($(wildcard ../shared/data),)
export ENERGYLM_DATA := $(abspath ../shared/data)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos check format bench results docs notebooks figures sizes release clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(INSTALLED) ## make .venv and install energylm with everything it needs

# torch goes first and every install carries the constraint, so that no dependency can move it to another build.
$(INSTALLED): pyproject.toml constraints.txt
	@python="$(PYTHON)"; found=; \
	for candidate in $${python:-python3.11 python3 python3.12 python3.13 python3.14}; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "energylm needs Python 3.11 or newer and found none; install it, or run: make setup PYTHON=/path/to/python" >&2; \
	  exit 2; \
	fi; \
	[ -x $(BIN)/python ] || $$found -m venv $(VENV) || \
	  { echo "could not make $(VENV) with $$found; its venv module is missing (on Debian: apt install python3-venv)" >&2; exit 2; }
	@echo "installing into $(VENV); this takes a few minutes the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(INSTALLED)

demo: $(INSTALLED) ## SmolLM2 under two energies, with a report, in about four minutes
	$(BIN)/energylm demo --output $(OUT)/demo

test: $(INSTALLED) ## the whole test suite, two workers with one torch thread each
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup

chaos: $(INSTALLED) ## every long job killed at 20 random moments and resumed; about ten minutes
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/chaos --kills 20

check: $(INSTALLED) ## ruff, ruff format, mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED) ## let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(INSTALLED) ## every benchmark, one after another; JSON under out/bench
	@mkdir -p $(OUT)/bench; failed=; \
	for name in $$($(BIN)/energylm bench list); do \
	  $(BIN)/energylm bench $$name --json $(OUT)/bench/$$name.json || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "bars that do not hold, or benchmarks that failed:$$failed" >&2; exit 1; fi

results: $(INSTALLED) ## write docs/results.md and a page a paper from the kept results in docs/results
	$(BIN)/python -m energylm.verbs.recipes.results_page docs

docs: $(INSTALLED) ## the documentation site into out/site; a dead link or a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir $(abspath $(OUT))/site

notebooks: $(INSTALLED) ## run the tutorials with real models and keep what they print; some minutes
	$(BIN)/python docs/tutorials/run.py

figures: $(INSTALLED) ## draw the figures of the concept pages
	$(BIN)/python docs/concepts/figures.py

sizes: $(INSTALLED) ## what each extra weighs, into docs/install.md
	$(BIN)/python docs/sizes.py docs/install.md

release: $(INSTALLED) ## a dry run: builds wheel and sdist, checks them, and says what is left to do by hand
	rm -rf $(OUT)/dist
	$(BIN)/python -m build --no-isolation --outdir $(OUT)/dist >/dev/null
	$(BIN)/pytest -q tests/test_packaging.py tests/test_package.py
	@ls -l $(OUT)/dist; echo "nothing was published; docs/release.md says what comes now"

clean: ## remove what the tools leave behind; keeps .venv and out
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find src tests -name __pycache__ -type d -exec rm -rf {} +
