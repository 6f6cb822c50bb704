# Every target sets up .venv by itself, and again only when pyproject.toml has changed.
# PYTHON=/path/to/python chooses the interpreter; ARGS="…" is passed on to run, test and bench.

VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.installed

CANDIDATES = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
IS_RECENT = import sys; sys.exit(sys.version_info < (3, 11))
BASE_PYTHON = $(shell for p in $(CANDIDATES); do "$$p" -c '$(IS_RECENT)' 2>/dev/null && echo "$$p" && break; done)
TOO_OLD = holdfast needs Python 3.11 or newer, tried: $(CANDIDATES). Say PYTHON=/path/to/python3

.DEFAULT_GOAL := help
.PHONY: help run test pythons tools check bench soak screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

# A queue of its own, in .holdfast: QUEUECTL_HOME=.holdfast .venv/bin/queuectl status looks at it.
run: export QUEUECTL_HOME = $(CURDIR)/.holdfast
run: $(RUNS) ## serve the dashboard, the API and a worker with example jobs; ARGS="--port 9000"
	@$(BIN)/python -m examples.demo
	@$(BIN)/queuectl serve --app examples.demo:queue $(ARGS)

# Plugins that come with other packages and that no test uses: they look at each of ten thousand tests.
UNUSED = -p no:schemathesis -p no:anyio -p no:platformdirs

# Three at a time: half of the tests' time is waiting for processes and leases.
test: $(READY) tools ## run the tests; ARGS="-k lease -x" goes to pytest, -n0 runs one at a time
	$(BIN)/python -m pytest -ra -n 3 --dist worksteal $(UNUSED) $(ARGS)

# Every other Python that is here, whether it is on the PATH or pyenv has it. What needs a browser or
# PostgreSQL runs on the first one alone: those tests take the most time, and depend on Python the least.
THIS = $(shell $(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
OTHERS = $(filter-out $(THIS),3.11 3.12 3.13 3.14)
PYENV = $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
pythons: $(READY) ## run the tests that need no browser and no PostgreSQL on every other Python that is here
	@for version in $(OTHERS); do \
		for python in python$$version $(PYENV)/$$version.*/bin/python; do \
			"$$python" -c '$(IS_RECENT)' 2>/dev/null || continue; \
			echo "Python $$version"; \
			HOLDFAST_TEST_WITHOUT=postgres,browser $(MAKE) test PYTHON="$$python" VENV=$(VENV)-$$version || exit; \
			break; \
		done; \
	done

# A browser, clocks that go wrong, and a pooler for PostgreSQL. Only where nobody has to be asked: elsewhere the tests that need them
# are skipped and say what to install.
INSTALL = env DEBIAN_FRONTEND=noninteractive apt-get -qq
tools:
	@has() { for name in "$$@"; do command -v "$$name" >/dev/null && return; done; return 1; }; wanted=; \
	has chromium chromium-browser google-chrome || wanted='chromium fonts-dejavu-core'; \
	has faketime || wanted="$$wanted faketime"; \
	has pgbouncer /usr/sbin/pgbouncer || wanted="$$wanted pgbouncer"; \
	[ -n "$$wanted" ] && command -v apt-get >/dev/null || exit 0; \
	if [ "$$(id -u)" = 0 ]; then root=; elif sudo -n true 2>/dev/null; then root='sudo -n'; else exit 0; fi; \
	echo "installing for the tests:" $$wanted; \
	{ $$root $(INSTALL) update && $$root $(INSTALL) install -y --no-install-recommends $$wanted; } >/dev/null \
	|| echo "could not be installed:" $$wanted

check: $(READY) ## lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Without bytecode files every start of a process compiles anew, and that would be measured.
bench: $(READY) ## run the benchmarks
	unset PYTHONDONTWRITEBYTECODE; $(BIN)/python -m benchmarks $(ARGS)

soak: $(READY) ## run both engines under load and faults; ARGS=45m is how long
	unset PYTHONDONTWRITEBYTECODE; $(BIN)/python -m tests.process.soak $(ARGS)

screenshots: $(READY) tools ## take the pictures of the README anew, in docs/images
	$(BIN)/python -m tests.surfaces.screenshots

clean: ## remove the virtual environment, caches and build output
	rm -rf $(VENV) $(VENV)-3.* build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# To run it takes less than to test it.
$(RUNS): EXTRA = web
$(READY): EXTRA = dev
$(RUNS) $(READY): pyproject.toml
	$(if $(BASE_PYTHON),,$(error $(TOO_OLD)))@echo "setting up $(VENV)"
	@$(BASE_PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(EXTRA)]'
	@touch $@ $(RUNS)
