# A few words to work here. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
COMPAT := build/compat
BIN := $(VENV)/bin
EXTRAS := text,torch,fast,media,optimal,huggingface,trl,lightning,test,check,docs

# Tests start Python a hundred times: all of them take compiled modules from the first.
test test-all: export PYTHONDONTWRITEBYTECODE =

# Half of the tests by their time: those that load models, trainers and processors. The other half is all the others. Two
# processes of pytest that know nothing of each other take a tenth less than two that a third one feeds (`-n 2`).
MODELS := $(addprefix tests/,cli encode flow measure media report serve stream integrations verify test_readme.py)

# Else Material prints an advertisement of a fork.
docs: export NO_MKDOCS_2_WARNING = true

.PHONY: help demo test test-models test-rest test-all check docs guard release-check compat bench gpu chaos mutants format clean

help:
	@echo "make demo     the whole line on real text of this machine, about a minute"
	@echo "make test     all tests but the long ones"
	@echo "make test-all all tests: the long ones too, and properties on more cases"
	@echo "make check    ruff and mypy, over tests as well"
	@echo "make release-check  what would be published, installed and tried in Python 3.10 and 3.13 (PYTHONS, TAG)"
	@echo "make compat   what runs with the newest releases of trainers, and docs/compatibility.md (TRAINERS, AGAIN)"
	@echo "make docs     the site, in build/site: a dead link or an undocumented public name fails"
	@echo "make guard    fails if a stage became slow: processor time over that of a limit, in a quarter of a minute"
	@echo "make bench    ratios beside peers and physical limits, taken in one run"
	@echo "make gpu      what only a GPU can show, in 8 minutes, to benchmarks/results (TINY=1: on a CPU, to build)"
	@echo "make chaos    long fault runs, and properties with fresh seeds"
	@echo "make mutants  how many small changes of the code the tests see, on a sample"
	@echo "make format   format the code"

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/brimful demo -o demo-out
	$(BIN)/python examples/13_packed_against_padded.py demo-out

test: $(VENV)/.installed
	@$(MAKE) --no-print-directory --jobs=2 test-models test-rest

test-models: $(VENV)/.installed
	$(BIN)/python -m pytest $(MODELS)

test-rest: $(VENV)/.installed
	$(BIN)/python -m pytest tests $(MODELS:%=--ignore=%)

test-all: test
	$(BIN)/python -m pytest -n 2 -m "(long or hypothesis) and not chaos" --hypothesis-profile=all

check: $(VENV)/.installed docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

release-check:
	$(PYTHON) -m tests.release $(TAG:%=--tag %) $(PYTHONS:%=--python %)

compat: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.compat --folder $(COMPAT) $(AGAIN) $(TRAINERS)

docs: $(VENV)/.installed
	$(BIN)/mkdocs build

guard: $(VENV)/.installed
	$(BIN)/python -m benchmarks.guard

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

# Where there is no .venv, with the Python that has torch for the GPU: nothing is installed or downloaded.
gpu:
	PYTHONPATH=src $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(TINY:%=--tiny)

chaos: $(VENV)/.installed
	$(BIN)/python -m pytest -m chaos -o faulthandler_timeout=0
	$(BIN)/python -m pytest -n 2 -m "hypothesis and not chaos and not long" --hypothesis-profile=chaos

mutants: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt cosmic-ray
	$(BIN)/python -m tests.mutants

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo-out build dist
