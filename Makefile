# make demo and make test do everything; `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
# Test files run beside each other: most of their time is waiting for processes.
WORKERS ?= 2
export PYTHON

.PHONY: help setup demo test test-full lint types format docs dist bench constraints clean

help:
	@echo "make demo       set up, then one real episode of a real harness in a sandbox, verified"
	@echo "make test       set up, then all tests but the long ones (under 15 minutes)"
	@echo "make test-full  all tests: every cell and mutant"
	@echo "make lint types ruff; mypy and pyright, both strict"
	@echo "make format     let ruff format the code"
	@echo "make docs       write the pages that are made from the machine's tables"
	@echo "make dist       wheels of all distributions in dist/"
	@echo "make bench      the measured figures of the README"
	@echo "make clean      remove .venv, caches and runs"

setup:
	@.ci/setup

demo: setup
	@$(BIN)/inspan demo $(DEMO)

test: setup
	@.ci/test-programs
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not full" $(TESTS)

test-full: setup
	@.ci/test-programs
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# pyright brings a Node.js of its own from the registry, which nothing else needs.
types: setup
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements-types.txt
	@$(BIN)/pyright
	@$(BIN)/mypy core/src supervisor/src server/src $(wildcard plugins/*/src)

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup
	@$(BIN)/python docs/generate.py

dist: setup
	@rm -rf dist
	@for project in core supervisor server plugins/*/; do \
		$(BIN)/python -m build --no-isolation --wheel --outdir dist $$project >/dev/null || exit 1; \
	done
	@ls dist

bench: setup
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# After a change of requirements: a fresh environment's versions become the pins.
constraints:
	@rm -rf .venv && sed -i '/^[^#]*==/d' constraints.txt && .ci/setup
	@$(BIN)/python -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+==' >> constraints.txt

clean:
	rm -rf .venv dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
