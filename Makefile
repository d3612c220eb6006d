# The CPU build of torch, for the tests' oracle; README.md says how to name one where the package index serves CUDA builds.
TORCH ?= torch==2.13.0
MODEL ?= smollm2-135m
PROMPT ?= Explain in three sentences how a water mill works.
WORKERS ?= 2
FUZZ_EVENTS ?= 300000
FUZZ_HEADERS ?= 100000
SOAK_SECONDS ?= 60

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip -qq --disable-pip-version-check install

ifndef HEADRACE_SHARED_DATA
ifneq ($(wildcard ../shared/data),)
export HEADRACE_SHARED_DATA := $(abspath ../shared/data)
endif
endif

.PHONY: help demo serve test check docs page page-check fuzz soak sanitize emulate clean

help:
	@echo "make demo    install into $(VENV), fetch the default model, generate"
	@echo "make serve   install, then serve the default model and the web page at http://127.0.0.1:8000/"
	@echo "make test    install with the development tools, run every test"
	@echo "make check   lint, types, import rules, budgets, generated docs"
	@echo "make docs    write the generated docs again"
	@echo "make page    build the web page from web/ into the package (needs Node 20.19 or newer)"
	@echo "make fuzz    look for $(FUZZ_EVENTS) scheduler events that break an invariant,"
	@echo "             and $(FUZZ_HEADERS) damaged files that are neither read nor refused"
	@echo "make soak    the server under load for $(SOAK_SECONDS) s each, and schemathesis"
	@echo "make sanitize  build the kernels with sanitizers and run their tests"
	@echo "make emulate   build the kernels with the AMX instructions played by C++, and run their tests"
	@echo "make clean   remove $(VENV) and all caches"

demo: $(VENV)/.runs
	$(BIN)/headrace generate --model $(MODEL) "$(PROMPT)"

serve: $(VENV)/.runs
	$(BIN)/headrace serve --model $(MODEL)

test: $(VENV)/.develops
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(VENV)/.develops
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.imports
	$(BIN)/python -m tools.budgets
	$(BIN)/python -m tools.gen_docs --check
	$(BIN)/python -m tools.trace_table --check

docs: $(VENV)/.develops
	$(BIN)/python -m tools.gen_docs
	$(BIN)/python -m tools.trace_table

page: web/node_modules/.package-lock.json
	cd web && npm run build

# The committed page is what its sources build.
page-check: page
	git diff --exit-code --stat -- src/headrace/server/static
	@test -z "$$(git status --porcelain -- src/headrace/server/static)" || { echo "commit what make page built" >&2; exit 1; }

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci
	@touch $@

fuzz: $(VENV)/.develops
	HEADRACE_FUZZ_EVENTS=$(FUZZ_EVENTS) $(BIN)/python -m pytest tests/schedule --timeout 0
	HEADRACE_FUZZ_HEADERS=$(FUZZ_HEADERS) $(BIN)/python -m pytest tests/load/test_fuzz.py --timeout 0

soak: $(VENV)/.develops
	HEADRACE_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest tests/server/soak.py -s
	$(BIN)/python -m benchmarks.streams

comma := ,
KERNEL_TESTS := $(BIN)/python -m pytest tests/ops/native -q -p no:cacheprovider --timeout 0
BUILD_KERNELS = cmake -S . -B build/$(1) -DHEADRACE_SANITIZE=$(2) -DPython_EXECUTABLE=$(abspath $(BIN)/python) && cmake --build build/$(1) -j 2
sanitize: $(VENV)/.develops
	$(BIN)/python -m pip -qq install "nanobind>=2.9,<3"
	$(call BUILD_KERNELS,address,address$(comma)undefined)
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	    HEADRACE_NATIVE_BUILD=$(abspath build/address) $(KERNEL_TESTS)
	$(call BUILD_KERNELS,thread,thread)
	LD_PRELOAD=$$(gcc -print-file-name=libtsan.so) TSAN_OPTIONS=halt_on_error=1 \
	    HEADRACE_NATIVE_BUILD=$(abspath build/thread) $(BIN)/python -m tests.ops.native.races

# The AMX kernels on a processor without AMX: its instructions are played by C++.
emulate: $(VENV)/.develops
	$(BIN)/python -m pip -qq install "nanobind>=2.9,<3"
	cmake -S . -B build/emulated -DHEADRACE_EMULATE_AMX=ON -DPython_EXECUTABLE=$(abspath $(BIN)/python) && cmake --build build/emulated -j 2
	HEADRACE_NATIVE_BUILD=$(abspath build/emulated) $(KERNEL_TESTS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python3 -m venv $(VENV)

$(VENV)/.runs: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) and compiling the kernels; this takes one to four minutes, without a word."
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.develops: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) with the development tools and compiling the kernels; this takes one to four minutes."
	@$(INSTALL) "$(TORCH)" -e ".[torch,dev]"
	@touch $@ $(VENV)/.runs
