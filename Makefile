# make demo: set up and do the main job on the embedded model. make test: set up and test.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
QFILTERS := $(BIN)/qfilters
comma := ,
EXTRAS := dev$(if $(filter Linux,$(shell uname -s)),$(comma)cpu)

.PHONY: demo test smoke lint readme evidence clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qfilters needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	touch $@

demo: $(VENV)/.ready
	@mkdir -p demo
	@echo; echo "== 1/6 this machine =="
	@cd demo && $(QFILTERS) doctor
	@echo; echo "== 2/6 calibrate: one direction per KV head from 8 x 1024 tokens =="
	@cd demo && $(QFILTERS) calibrate --overwrite
	@echo; echo "== 3/6 inspect: what the filters say =="
	@cd demo && $(QFILTERS) inspect artifacts/filters/smollm2-135m.npz --model smollm2-135m
	@echo; echo "== 4/6 perplexity: five methods, two budgets, 2 x 1024 tokens =="
	@cd demo && $(QFILTERS) ppl --num-samples 2 --overwrite
	@echo; echo "== 5/6 ruler: a needle in 1024 tokens, twice, nine arms from one prefill =="
	@cd demo && $(QFILTERS) ruler --task niah_single_1 --num-samples 2 --overwrite
	@echo; echo "== 6/6 generate: 120 tokens under a budget of 64 rows =="
	@cd demo && $(QFILTERS) generate --prompt "Tell me a story about a lighthouse keeper and her dog." --budget 64 --max-tokens 120
	@echo; echo "Everything the demo wrote is in demo/artifacts."

test: $(VENV)/.ready
	$(BIN)/python -m pytest -q

smoke: $(VENV)/.ready
	$(BIN)/python tests/smoke.py $(QFILTERS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

PAGES := $(addprefix --readme ,README.md $(wildcard docs/*.md))
readme: $(VENV)/.ready
	$(QFILTERS) report $(PAGES) --figures docs/figures

# Every table of the documentation; finished runs are kept.
evidence: $(VENV)/.ready
	$(BIN)/python benchmarks/evidence.py
	$(QFILTERS) report $(PAGES) --figures docs/figures --html results.html

clean:
	rm -rf $(VENV) demo results.html build dist .pytest_cache .ruff_cache .hypothesis
