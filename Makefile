# Every target sets up .venv by itself, and again only when pyproject.toml has changed.
# PYTHON=/path/to/python chooses the interpreter; ARGS="…" is passed on to run, test and bench.

VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.installed

CANDIDATES = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
IS_RECENT = import sys; sys.exit(sys.version_info < (3, 11))
BASE_PYTHON = $(shell for p in $(CANDIDATES); do "$$p" -c '$(IS_RECENT)' 2>/dev/null && echo "$$p" && break; done)
TOO_OLD = Holdfast requires Python 3.11 or newer; tried: $(CANDIDATES). Set PYTHON=/path/to/python3

# Without bytecode files, every process compiles the code again when it starts: in tests there are thousands,
# and in benchmarks it would be measured.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run quick test most pythons tools check bench soak simulate screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

# A queue of its own, in .holdfast: QUEUECTL_HOME=.holdfast .venv/bin/queuectl status shows it.
run: export QUEUECTL_HOME = $(CURDIR)/.holdfast
run: $(RUNS) ## run the dashboard, the API and a worker with example jobs; for example ARGS="--port 9000"
	@$(BIN)/python -m examples.demo
	@$(BIN)/queuectl serve --app examples.demo:queue $(ARGS)

# Plugins that come with other packages and that no test uses: they look at each of ten thousand tests.
UNUSED = -p no:schemathesis -p no:anyio -p no:platformdirs

PYTEST = $(BIN)/python -m pytest -ra -n $(1) --dist worksteal $(UNUSED)

quick: $(READY) ## run the fast tests, about a minute: no processes, no browser, no PostgreSQL
	$(call PYTEST,3) -m 'not (process or slow or browser or postgres)' $(ARGS)

# Three at a time keep two cores busy: with more, what a test waits for comes late.
test: $(READY) tools ## run all tests; ARGS="-k lease -x" goes to pytest, -n0 runs one at a time
	$(call PYTEST,3) $(ARGS)

# Every other Python that is here, whether it is on the PATH or pyenv has it. Browsers and servers depend on
# Python the least, and take the most time.
THIS = $(shell $(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
OTHERS = $(filter-out $(THIS),3.11 3.12 3.13 3.14)
PYENV = $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
pythons: $(READY) ## run the tests without a browser or PostgreSQL on every other installed Python; or TARGET=quick
	@for version in $(OTHERS); do \
		for python in python$$version $(PYENV)/$$version.*/bin/python; do \
			"$$python" -c '$(IS_RECENT)' 2>/dev/null || continue; \
			echo "Python $$version"; \
			$(MAKE) $(or $(TARGET),most) PYTHON="$$python" VENV=$(VENV)-$$version PACKAGES=test || exit; \
			break; \
		done; \
	done

most: $(READY)
	$(call PYTEST,4) -m 'not (browser or postgres)' $(ARGS)

# A browser, clocks that go wrong, and a pooler for PostgreSQL. Only where nobody has to be asked: elsewhere the tests that need them
# are skipped and say what to install. Pages cost the headless shell a fifth of what they cost a whole Chromium.
INSTALL = env DEBIAN_FRONTEND=noninteractive apt-get -qq
tools:
	@has() { for name in "$$@"; do command -v "$$name" >/dev/null && return; done; return 1; }; wanted=; \
	if has chromium-headless-shell; then :; \
	elif apt-cache show chromium-headless-shell >/dev/null 2>&1; then wanted='chromium-headless-shell fonts-dejavu-core'; \
	else has chromium chromium-browser google-chrome || wanted='chromium fonts-dejavu-core'; fi; \
	has faketime || wanted="$$wanted faketime"; \
	has pgbouncer /usr/sbin/pgbouncer || wanted="$$wanted pgbouncer"; \
	[ -n "$$wanted" ] && command -v apt-get >/dev/null || exit 0; \
	if [ "$$(id -u)" = 0 ]; then root=; elif sudo -n true 2>/dev/null; then root='sudo -n'; else exit 0; fi; \
	echo "installing for the tests:" $$wanted; \
	{ $$root $(INSTALL) update && $$root $(INSTALL) install -y --no-install-recommends $$wanted; } >/dev/null \
	|| echo "could not install:" $$wanted

check: $(READY) ## check lint rules, formatting, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY) ## measure Holdfast beside bare SQL and other queues; ARGS=--full takes long, ARGS=--write updates the docs
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(READY) ## run both engines under load and faults; ARGS=45m sets the duration
	$(BIN)/python -m tests.process.soak $(ARGS)

simulate: $(READY) ## simulate 200,000 worlds full of faults; ARGS="--seed 123" prints the history of one
	@$(BIN)/python -m tests.simulation $(ARGS)

screenshots: $(READY) tools ## retake the screenshots of the README, in docs/images
	$(BIN)/python -m tests.surfaces.screenshots

clean: ## remove the virtual environment, caches and build output
	rm -rf $(VENV) $(VENV)-3.* .bench_cache build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Running it needs fewer packages than testing it.
$(RUNS): EXTRA = web
$(READY): EXTRA = $(or $(PACKAGES),dev)
$(RUNS) $(READY): pyproject.toml
	$(if $(BASE_PYTHON),,$(error $(TOO_OLD)))@echo "setting up $(VENV)"
	@$(BASE_PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(EXTRA)]'
	@touch $@ $(RUNS)
