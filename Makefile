# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# The tests start hundreds of processes, each 0.3 s faster with cached bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check format test-ray test-int8 test-triton test-label-studio benchmark clean

demo: .venv/installed
	$(BIN)/nestree demo

test: .venv/installed
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal --ignore tests/integrations/test_ray.py

# Ray clusters of several processes, which would disturb each other and other tests.
test-ray: .venv/installed
	$(BIN)/python -m pytest tests/integrations/test_ray.py

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.tables --check

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# All int8 kernels; the instruction of those that this processor cannot run is emulated.
test-int8: .venv/installed
	NESTREE_EMULATE_INT8=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -k forced tests/nn/test_int8.py

# The GPU kernels under Triton's interpreter on the CPU: the smallest cases, in about a minute; TRITON_CASES= for all.
TRITON_CASES ?= -k "triton-cpu and (small or float or lexical) and not entropy or find or far_terms"
test-triton: .venv/triton
	TRITON_INTERPRET=1 PYTHONPATH=.venv/triton $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal \
		$(TRITON_CASES) tests/treecrf/test_backends.py tests/treecrf/test_triton_kernels.py

# A real Label Studio, in a virtual environment of its own: its dependencies clash with others.
test-label-studio: .venv/installed .venv/label-studio/installed
	NESTREE_LABEL_STUDIO=$(CURDIR)/.venv/label-studio/bin/label-studio \
		$(BIN)/python -m pytest tests/serve/test_label_studio.py

benchmark: .venv/installed
	$(BIN)/python -m benchmarks.treecrf

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[dev]'
	touch $@

# Not in .venv itself, where every test would find it.
.venv/triton: .venv/installed
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $@ 'triton>=3.6'
	touch $@

.venv/label-studio/installed: .venv/installed
	$(PYTHON) -m venv .venv/label-studio
	$(BIN)/uv pip install --quiet --python .venv/label-studio/bin/python label-studio
	touch $@

clean:
	rm -rf .venv
