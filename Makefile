# Thin targets over standard commands; everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
STAMP := $(VENV)/.installed
TESTS_STAMP := $(VENV)/.installed-tests
LAB_STAMP := $(VENV)/.installed-lab
DOCS_STAMP := $(VENV)/.installed-docs
OLDEST := .venv-oldest
OLDEST_STAMP := $(OLDEST)/.installed
# Two processes, a file's tests in one of them: most of a test's time is waiting for processes that start.
PYTEST := -m pytest -n 2 --dist loadfile

.PHONY: resolve demo verify-hardware test test-long test-fast test-oldest test-browser images check docs lab front-end bench clean

demo: $(STAMP)
	$(BIN)/aner-nb run quick --out results/quick

verify-hardware: $(STAMP)
	$(BIN)/aner-nb doctor
	$(BIN)/aner-nb run portable --here --out results/hardware
	$(BIN)/aner-nb hardware results/hardware
	@echo "Paste results/hardware/hardware.md into an issue, with results/hardware/public as a zip file."
	$(BIN)/aner-nb verify results/hardware

test: $(TESTS_STAMP)
	$(BIN)/python $(PYTEST) -m "not browser and not long" --durations 25
	$(BIN)/python $(PYTEST) notebooks --nbval --nbval-sanitize-with notebooks/sanitize.cfg --timeout 600

test-long: $(TESTS_STAMP)
	$(BIN)/python -m pytest -m long

test-fast: $(TESTS_STAMP)
	$(BIN)/python -m pytest -m "not cluster and not tensorflow and not browser and not slow and not long"

# TensorFlow 2.18 is the newest that tensorflow-metal loads with, and the oldest that is supported.
test-oldest: $(OLDEST_STAMP)
	$(OLDEST)/bin/python $(PYTEST) -m "not long" -k "not test_trials or learns" $(OLDEST_TESTS)

OLDEST_TESTS := tests/contract tests/emulated_device/test_trials.py tests/test_optimizers.py tests/test_training.py

test-browser: $(TESTS_STAMP)
	$(BIN)/python -m pytest tests/browser

images: $(TESTS_STAMP)
	$(BIN)/python -m pytest tests/browser -m "not slow"
	cp artefacts/guide-*.png docs/images/

check: $(TESTS_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What the extras would install on the machines that they are for; nothing is installed.
RESOLVE := $(BIN)/uv pip compile --quiet --no-header --no-annotate --only-binary :all: --python-version 3.12 pyproject.toml
resolve: $(TESTS_STAMP)
	@mkdir -p build
	$(RESOLVE) --extra metal --python-platform aarch64-apple-darwin --output-file build/metal.txt >/dev/null
	grep -x 'tensorflow-metal==1.2.*' build/metal.txt && grep -x 'tensorflow==2.18.*' build/metal.txt
	$(RESOLVE) --extra cuda --python-platform x86_64-unknown-linux-gnu --output-file build/cuda.txt >/dev/null
	grep -x 'tensorflow==2.*' build/cuda.txt && grep 'nvidia-cudnn' build/cuda.txt

lab: $(LAB_STAMP)
	$(BIN)/jupyter lab $(wildcard notebooks)

front-end: $(TESTS_STAMP)
	$(PIP) --group front-end
	$(BIN)/python widgets/lab/build.py

bench: $(TESTS_STAMP)
	$(BIN)/python benchmarks/exchange.py
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf $(VENV) $(OLDEST) build dist results artefacts site

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "aner-nb needs Python 3.11, 3.12 or 3.13; $(PYTHON) is %d.%d. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" % v)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing aner-nb and TensorFlow into $(VENV); about two minutes the first time."
	$(PIP) --editable .
	@touch $@

$(TESTS_STAMP): $(STAMP)
	$(PIP) "pip>=25.1"
	$(PIP) --group dev
	@touch $@

$(OLDEST_STAMP): pyproject.toml constraints-oldest.txt | $(TESTS_STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OLDEST)
	$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --constraint constraints-oldest.txt --editable . --group oldest
	@touch $@

$(DOCS_STAMP): $(TESTS_STAMP)
	$(PIP) --group docs
	@touch $@

$(LAB_STAMP): $(STAMP)
	$(PIP) --editable '.[lab]'
	@touch $@
