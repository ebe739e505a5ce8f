SHELL := bash

# Every test process would compile what the others have compiled already.
unexport PYTHONDONTWRITEBYTECODE

# The first of these that is Python 3.11 or later makes the environment; `make PYTHON=...` names another.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
IS_ENOUGH  := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON     ?= $(shell for each in $(CANDIDATES); do $$each -c '$(IS_ENOUGH)' 2>/dev/null && echo $$each && break; done)

VENV  := .venv
BIN   := $(VENV)/bin
DEMO  := $(VENV)/.demo
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
BENCH := .venv-bench
DIST  := .venv-release
COVER := .venv-coverage

# The oldest versions that setup.cfg allows, and two pairs between these and the newest ones of `make test`.
oldest     := 'celery[redis]==5.5.*' 'redis==5.0.*'
celery-5.6 := 'celery[redis]==5.6.*' 'kombu==5.6.*' 'redis==6.4.*'
redis-7.0  := 'celery[redis]' 'redis==7.0.*'
PAIRS := oldest celery-5.6 redis-7.0
PAIR_TESTS := tests/beat tests/api/test_schedules_*.py tests/once tests/pipeline tests/runs tests/topologies

# How many run at once, and in which order, tests/support/pacing.py says.
AT_ONCE := -n auto --dist loadscope --no-loadscope-reorder

# pytest ends with 5 if it has run no test, which is all right for a selection of them.
NONE_IS_FINE = $(if $(ARGS),|| [ $$? -eq 5 ])

.DEFAULT_GOAL := help
.PHONY: help run test lint format unit soak browser versions $(PAIRS) coverage bench docs screenshots release-check clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(DEMO) ## Watch it work: a server, a worker, two beats and the page; ends on Ctrl-C, or after SECONDS=n
	@$(BIN)/python -m redbeat_lite demo $(if $(SECONDS),--seconds $(SECONDS))

test: $(READY) ## Lint, type-check and run every test against a real server; ARGS="-k name" for some of them
	@$(MAKE) --no-print-directory -j2 lint $(COMPILED)
	$(BIN)/python -m pytest $(AT_ONCE) $(ARGS)

lint: $(READY) ## Lint, formatting, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

unit: $(READY) ## Only the tests that need no server
	$(BIN)/python -m pytest -m "not server and not soak" $(ARGS)

soak: $(READY) ## The long tests that `make test` leaves out, for MINUTES=n
	SOAK_MINUTES=$(or $(MINUTES),2) $(BIN)/python -m pytest -n 3 --dist worksteal -m "soak and not alone" $(ARGS) $(NONE_IS_FINE)
	SOAK_MINUTES=$(or $(MINUTES),2) $(BIN)/python -m pytest -m "soak and alone" $(ARGS) $(NONE_IS_FINE)

browser: $(VENV)/.browser ## The page in a real Chromium, which has to be there; see CONTRIBUTING
	$(BIN)/python -m pytest -m browser $(ARGS)

versions: $(PAIRS) ## Most of the tests with older pairs of Celery and redis-py; `make oldest` has the oldest pair alone

$(PAIRS): %: .venv-%/.ready
	.venv-$*/bin/python -m pytest $(AT_ONCE) $(PAIR_TESTS) $(ARGS)

coverage: $(COVER)/.ready ## Which lines the tests run, in htmlcov too; ARGS="tests/beat" for some of the tests
	@$(COVER)/bin/coverage erase
	@$(COVER)/bin/coverage run -m pytest $(AT_ONCE) $(ARGS); ended=$$?; \
	  $(COVER)/bin/coverage combine --quiet && $(COVER)/bin/coverage html --quiet && \
	  $(COVER)/bin/coverage report && echo "Built: htmlcov/index.html" && exit $$ended

bench: $(BENCH)/.ready ## Measure it beside its peers; QUICK=1 in under three minutes, PUBLISH=1 to renew the docs
	@$(BENCH)/bin/python -m benchmarks $(if $(QUICK),--quick) $(if $(PUBLISH),--publish) $(ARGS)
	@$(BENCH)/bin/python -m benchmarks.pipelines $(if $(QUICK),--quick)

docs: $(READY) ## Build the documentation into docs/_build
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build
	@echo "Built: docs/_build/index.html"

screenshots: $(VENV)/.browser ## Take the pictures of the page and of a hand-over for docs/img, by Chromium
	@$(BIN)/python -m tests.web.screenshots

release-check: $(DIST)/.ready ## Build the sdist and the wheel, and try the wheel with each Python that is here
	rm -rf dist
	$(DIST)/bin/python -m build --quiet
	$(DIST)/bin/python -m twine check --strict dist/*
	@$(DIST)/bin/python -m tests.release dist/*.whl

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and everything built
	rm -rf $(VENV) $(BENCH) $(PAIRS:%=.venv-%) $(DIST) $(COVER) build dist htmlcov .coverage* docs/_build *.egg-info \
	  .hypothesis .mypy_cache .pytest_cache .ruff_cache

# Installs what the target NEEDS into its environment, with one line for each package that it comes to.
define install
@set -o pipefail; log=$(@D)/pip.log; $(@D)/bin/python -m pip install --disable-pip-version-check --editable $(NEEDS) 2> $$log \
  | awk '/^Collecting/ { sub(/[^A-Za-z0-9._-].*/, "", $$2); print "  " $$2; fflush() } \
         /^Installing collected/ { print "  installing ..."; fflush() }' || { cat $$log >&2; exit 1; }
@touch $@
endef

$(DEMO): NEEDS := '.[redis,embedded,web]'
$(DEMO): setup.cfg pyproject.toml
	@'$(PYTHON)' -c '$(IS_ENOUGH)' 2>/dev/null || \
	  { echo "Python 3.11 or later is needed and was not found; name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON), once: what redbeat_lite and its page need, and a server."
	@'$(PYTHON)' -m venv $(VENV)
	$(install)

$(READY): NEEDS := '.[embedded,solar,test,lint,docs]'
$(READY): $(DEMO)
	@echo "Adding what the tests, the checks and the documentation need to $(VENV), once."
	$(install)

# Else each of the processes that run tests would compile all of them for itself.
$(COMPILED): $(READY)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null && touch $@

$(VENV)/.browser: NEEDS := '.[browser]'
$(VENV)/.browser: $(READY)
	@echo "Adding what drives a browser to $(VENV), once."
	$(install)

$(BENCH)/.ready: NEEDS := '.[redis,embedded]' -r benchmarks/requirements.txt
$(BENCH)/.ready: setup.cfg pyproject.toml benchmarks/requirements.txt
	@echo "Setting up $(BENCH) with the peers to measure against, once."
	@'$(PYTHON)' -m venv $(BENCH)
	$(install)

$(PAIRS:%=.venv-%/.ready): NEEDS = '.[embedded,solar,test]' $($(@D:.venv-%=%))
$(PAIRS:%=.venv-%/.ready): setup.cfg pyproject.toml
	@echo "Setting up $(@D) with $($(@D:.venv-%=%)), once."
	@'$(PYTHON)' -m venv $(@D)
	$(install)

$(DIST)/.ready:
	@'$(PYTHON)' -m venv $(DIST)
	@$(DIST)/bin/python -m pip install -qq --disable-pip-version-check build twine
	@touch $@

$(COVER)/.ready: NEEDS := '.[redis,embedded,solar,test,docs,coverage]'
$(COVER)/.ready: setup.cfg pyproject.toml
	@echo "Setting up $(COVER), once."
	@'$(PYTHON)' -m venv $(COVER)
	$(install)
