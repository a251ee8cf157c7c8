# Two commands do it all on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN := runs/demo

.PHONY: setup demo demo-score test lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV) (PyTorch is large: about two minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -q -c constraints.txt -e ".[demo,asterisk,onnx,dev]"
	@touch $@

# An interrupted demo continues from its last checkpoint; a finished one is only sampled again. Remove runs/demo to start afresh.
demo: $(STAMP)
	@$(BIN)/profforce data prepare demo
	@if ls -d $(RUN)/checkpoints/step-* > /dev/null 2>&1; \
	then $(BIN)/profforce train --resume $(RUN); \
	else rm -rf $(RUN) && $(BIN)/profforce train experiment=demo hydra.run.dir=$(RUN); fi
	@$(BIN)/profforce sample --run $(RUN) --input data/texts/demo_listen.txt --out out/demo
	@echo "training curves: $(BIN)/tensorboard --logdir $(RUN)/tb"
	@cd out/demo && for wav in 0001-*.wav; do echo "done: listen to out/demo/$$wav and its sisters, look at out/demo/$${wav%.wav}.png"; done

# What Whisper mishears of unseen sentences; then of held-out ones, beside recordings and vocoded ones.
demo-score: $(STAMP)
	@$(PIP) install -q -c constraints.txt -e ".[demo,asterisk,onnx,dev,judges]"
	@mkdir -p out
	@$(BIN)/profforce evaluate --run $(RUN) --input data/texts/demo_unseen.txt num_utterances=50 \
		listen=true retries=2 attention_window=5 --out out/demo-score --json out/demo-score.json
	@$(BIN)/profforce evaluate --run $(RUN) listen=true --json out/demo-score-held-out.json

test: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not gpu" --durations=10

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --no-incremental  # a stale cache hides errors that a fresh checkout shows
	@$(BIN)/lint-imports

# Every suite in turn, with its table and its picture in out/bench: some fifteen minutes.
bench: $(STAMP)
	@mkdir -p out/bench
	@for suite in kernel attention decode train epoch; \
	do $(BIN)/profforce bench suite=$$suite threads=1 --plot out/bench/$$suite.png || exit 1; done

# Never removes runs, samples or corpora.
clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
