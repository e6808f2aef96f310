# Every target works alone on a fresh clone with Python 3.10 or newer, pip and make.
#   make setup PYTHON=python3.12       another interpreter for a new .venv
#   make setup PIP_ARGS="..."          further arguments for pip, such as an index that has CPU builds of torch

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed.stamp

DEMO_DATASET := build/demo/data
DEMO_PREDICTOR := build/demo/demo.json
DEMO_MODELS := "transformers:MobileBertModel?num_hidden_layers=12" "zoo:densenet121"

.PHONY: setup lock demo test test-full lint benchmark docs readme package

setup: $(INSTALLED)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "neuralpower needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)

# Python keeps what it compiles, even where the environment says no: else each of the tests' hundred processes would
# compile torch again, which takes three times as long as the import alone.
unexport PYTHONDONTWRITEBYTECODE

# Done again only when what is to be installed has changed. The second command finds all but torch installed. Python
# compiles a module when it is first imported: pip would compile 20,000, of which few ever are.
$(INSTALLED): pyproject.toml constraints.txt requirements.lock | $(BIN)/python
	$(BIN)/python -m pip install --no-compile $(PIP_ARGS) --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --no-compile $(PIP_ARGS) --no-build-isolation -c constraints.txt -e ".[dev]"
	touch $@

# Hashes of the files of constraints.txt, for all platforms; a version that some Python lacks is refused.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv==0.13.9
	build/lock/bin/uv pip compile constraints.txt --output-file requirements.lock --universal --python-version 3.10 \
		--no-deps --generate-hashes --no-emit-package torch --no-annotate --no-header --no-config --quiet

# Measure this machine for a few minutes, learn from that, and hold the predictor to two networks it has never seen.
demo: setup
	@$(BIN)/neuralpower collect-data --preset quick --out $(DEMO_DATASET)
	@$(BIN)/neuralpower train-predictor $(DEMO_DATASET) --out $(DEMO_PREDICTOR) --quiet
	@for model in $(DEMO_MODELS); do $(BIN)/neuralpower predict "$$model" --predictor $(DEMO_PREDICTOR) --top 5 || exit; done
	@$(BIN)/neuralpower evaluate $(DEMO_MODELS) --predictor $(DEMO_PREDICTOR)

# Two tests at a time, each on one thread: nearly twice as fast as one after the other on both cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: setup
	$(PYTEST)

# With the whole of each long sweep, of which `test` runs a sample.
test-full: setup
	$(PYTEST) -m ""

# mypy gives its two processes three seconds to start, else ends with code 2: then one does it all.
lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2 || { [ $$? -eq 2 ] && $(BIN)/mypy; }
	$(BIN)/python -m tests.vocabulary
	$(BIN)/python -m tests.strays

# Each file of benchmarks/ and benchmarks/train/ prints one table.
benchmark: setup
	for name in $$(cd benchmarks && ls [a-z]*.py train/[a-z]*.py | sed 's/\.py$$//' | tr / .); do $(BIN)/python -m "benchmarks.$$name" || exit; done

# The site, into build/site; a broken link is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# Run the commands that the README and the pages show, and write their outputs, the table of devices and the picture.
readme: setup
	$(BIN)/python -m docs.generate.outputs $(README_ARGS)

# The wheel, and a first prediction with nothing else of this checkout.
package: setup
	.ci/first-prediction $(BIN)/python
