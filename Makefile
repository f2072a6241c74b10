# The first run creates the environment, a later one reuses it: an install is repeated only when pyproject.toml or
# constraints.txt has changed. A stamp is written after its install has succeeded, never before.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# What `make train` shows: a minute on two cores.
demo := --dataset synthetic:arxiv@0.5 --method gas+rest --batch-size 5 --epochs 12 --eval-every 2 --error-every 4

bin := $(VENV)/bin
made := $(VENV)/.made-by-make
installed := $(VENV)/.installed
installed_dev := $(VENV)/.installed-dev
# setuptools is installed by its exact version too, and then builds the package: no isolated build with another one.
pip_install := $(bin)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DELETE_ON_ERROR:
# make -j must not let two pips write into one environment, nor run anything in it meanwhile.
.NOTPARALLEL:
.PHONY: help train test quick bench lint format report clean

help:  ## print this list
	@echo "make <target> [PYTHON=$(PYTHON)] [VENV=$(VENV)] [ARGS=...]"
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '  %-8s %s\n' "$$name" "$$what"; done

train: $(installed)  ## install, then train on a synthetic graph (ARGS: flags of rest_triton.train, such as --dataset products)
	$(bin)/python -m rest_triton.train $(if $(ARGS),$(ARGS),$(demo))

test: $(installed_dev)  ## install for development, then lint, type check, test, and run every benchmark once
	bash tests/run.sh $(bin) all

quick: $(installed_dev)  ## lint, type check and test the core, without the Triton interpreter: a minute
	bash tests/run.sh $(bin) quick

bench: $(installed_dev)  ## measure on this machine (ARGS: pytest's, such as -k spmm --benchmark-save=before)
	$(bin)/python -m pytest bench --benchmark-only --keep-freed-memory $(ARGS)

lint: $(installed_dev)  ## ruff and mypy only
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy

format: $(installed_dev)  ## let ruff reformat and repair what it can
	$(bin)/ruff check --fix
	$(bin)/ruff format

report: $(installed)  ## registers, spills and loops of the compiled GPU kernels (ARGS: such as --kernel spmm)
	$(bin)/python -m bench.compile.report $(ARGS)

clean:  ## remove the environment, caches and builds
	@if [ -e $(VENV) ] && [ ! -e $(made) ]; then echo "$(VENV) was not made by make: it stays."; else rm -rf $(VENV); fi
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find kernels rest_triton tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment without its stamp is one that failed half-way, and is made again. Anybody else's is left alone.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
		echo "rest_triton needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there)." \
			"Name another: make PYTHON=python3.12"; exit 1; }
	@if [ -e $(VENV) ] && [ ! -e $(made) ]; then \
		echo "$(VENV) exists and was not made by make; remove it, or name another: make VENV=.venv-make"; exit 1; fi
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@rm -rf $(VENV) && mkdir -p $(VENV) && touch $(made)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(installed): pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing rest_triton and what it needs into $(VENV) (torch is large: this can take minutes)"
	@rm -f $@
	@$(pip_install) setuptools
	@$(pip_install) --no-build-isolation -e '.[datasets]'
	@touch $@

$(installed_dev): $(installed)
	@echo "Installing the tools for tests into $(VENV)"
	@rm -f $@
	@$(pip_install) --no-build-isolation -e '.[dev]'
	@touch $@
