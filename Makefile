# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
TRITON := .venv-triton/bin
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.PHONY: demo test check format test-triton benchmark clean

demo: .venv/installed
	$(BIN)/nestree demo

test: .venv/installed
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.tables --check

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The GPU kernels, small shapes, under Triton's interpreter on the CPU.
test-triton: .venv-triton/installed
	TRITON_INTERPRET=1 $(TRITON)/python -m pytest tests/treecrf/test_triton_kernels.py

benchmark: .venv/installed
	$(BIN)/python -m benchmarks.treecrf

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[dev]'
	touch $@

.venv-triton/installed: pyproject.toml constraints.txt
	test -x $(TRITON)/python || $(PYTHON) -m venv .venv-triton
	$(TRITON)/python -m pip install --quiet uv
	$(TRITON)/uv pip install --quiet --compile-bytecode --python $(TRITON)/python -c constraints.txt -e '.[dev]' 'triton>=3.6'
	touch $@

clean:
	rm -rf .venv .venv-triton
