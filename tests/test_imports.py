"""Which package may import which: enforced by reading the sources."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "nestree"

# From the top down. Imports go downwards only, never within a line.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"integrations", "serve"},
    {"training"},
    {"report", "show"},
    {"acquisition", "predict_files", "api"},
    {"pipeline"},
    {"hub"},
    {"checkpoint"},
    {"model_card"},
    {"temperature", "quantization"},
    {"model"},
    {"evaluation", "losses", "decoding"},
    {"nn"},
    {"treecrf", "data"},
    {"text", "config", "display"},
    {"types"},
    {"errors"},
]
FLOOR = {piece: floor for floor, pieces in enumerate(FLOORS) for piece in pieces}
WITHOUT_TORCH = {"types", "errors", "config", "text", "data", "display", "evaluation", "report", "show"}
WITHOUT_TORCH |= {"model_card", ""}  # "": nestree
ONLY_IN = {
    "transformers": {"nn.encoder"},
    "triton": {"treecrf.triton_kernels"},
    "spacy": {"integrations.spacy"},
    "ray": {"integrations.ray"},
    "numba": {"treecrf.numba_kernels", "nn.int8"},
    "onnx": {"nn.onnx"},
    "onnxruntime": {"nn.onnx"},
    "onnxscript": {"nn.onnx"},
}
# Recognizer.from_pretrained, save_pretrained and push_to_hub, and Document.show, to_html and to_spacy: inside functions
UPWARDS = {("model", "checkpoint"), ("model", "hub"), ("types", "show"), ("types", "data")}
TORCH = {"torch", "transformers", "accelerate", "triton"}  # each imports torch


def modules(package: Path) -> dict[str, ast.Module]:
    """The syntax trees of all modules by their names within the package; that of the package itself is ''."""
    trees = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


def statements(node: ast.AST, at_top: bool) -> Iterator[ast.AST]:
    """Everything inside; `at_top`: without what is inside functions or for type checkers."""
    for child in ast.iter_child_nodes(node):
        if at_top and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if at_top and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from statements(child, at_top)


def imports(name: str, tree: ast.Module, known: set[str], at_top: bool = False) -> Iterator[str]:
    """The imports of a module: '.data.checks' within the package, 'torch' of other libraries."""
    for node in statements(tree, at_top):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} imports relatively, line {node.lineno}: write nestree.…"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            library, *parts = target.split(".")
            while parts and ".".join(parts) not in known:
                parts.pop()  # `from nestree.errors import DataError`: the module is nestree.errors
            yield "." + ".".join(parts) if library == "nestree" else library


def violations(package: Path) -> list[str]:
    """A sentence for every import that breaks a rule."""
    trees = modules(package)
    known = set(trees)
    errors = []
    all_imports = {name: set(imports(name, tree, known)) for name, tree in trees.items()}
    at_top = {name: set(imports(name, tree, known, at_top=True)) for name, tree in trees.items()}

    for name, targets in all_imports.items():
        piece = name.split(".")[0]
        if piece and piece not in FLOOR:
            errors.append(f"{piece} is not in FLOORS: add it there and to docs/architecture.md")
            continue
        for target in sorted(targets):
            if not target.startswith("."):
                allowed = ONLY_IN.get(target)
                if allowed is not None and not any(f"{name}.".startswith(f"{place}.") for place in allowed):
                    errors.append(f"{name} imports {target}, which belongs in {', '.join(sorted(allowed))}")
                continue
            below = target[1:].split(".")[0]
            if piece == below or (piece and not below) or below not in FLOOR:
                continue  # within one package, or the version number
            if piece == "treecrf" and below != "errors":
                errors.append(f"{name} imports {below}; of ours, treecrf imports errors alone")
            elif (piece, below) in UPWARDS and target not in at_top[name]:
                continue
            elif piece and FLOOR[piece] >= FLOOR[below]:
                errors.append(f"{name} imports {below}, which is not below it")

    all_imports[""] = at_top.get("", set())  # the package itself imports the rest lazily

    def imports_torch(name: str, graph: dict[str, set[str]], seen: set[str]) -> str | None:
        for target in sorted(graph.get(name, ())):
            if target in TORCH:
                return f"{name or 'nestree'} imports {target}"
            if target.startswith(".") and target[1:] not in seen:
                seen.add(target[1:])
                if why := imports_torch(target[1:], graph, seen):
                    return f"{name or 'nestree'} imports {target[1:]}, {why}"
        return None

    for name in known:
        piece = name.split(".")[0]
        if piece in WITHOUT_TORCH and (why := imports_torch(name, all_imports, {name})):
            errors.append(f"{why}: it must not import torch")
        if piece in ("__main__", "cli", "integrations") and (why := imports_torch(name, at_top, {name})):
            errors.append(f"{why}: import it inside the commands")
    return errors


def test_imports_go_downwards_and_heavy_libraries_stay_in_their_modules():
    assert violations(PACKAGE) == []


IMPORT_ALL = """
import importlib, sys
for name in {names}:
    try:
        importlib.import_module(f"nestree.{{name}}" if name else "nestree")
    except ModuleNotFoundError as missing:  # of an extra that is not installed
        assert not missing.name.startswith("nestree"), missing
    assert "torch" not in sys.modules, f"nestree.{{name}} imports torch"
"""


def test_light_modules_do_not_import_torch():
    light = [name for name in modules(PACKAGE) if name.split(".")[0] in WITHOUT_TORCH | {"cli"}]
    subprocess.run([sys.executable, "-c", IMPORT_ALL.format(names=light)], check=True)


HEAVY = ["torch", "transformers", "numpy", "numba", "safetensors", "accelerate", "spacy", "rich"]


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        ("from nestree.cli import app; app(['--help'], standalone_mode=False)", HEAVY),  # so it comes at once
        ("import nestree.evaluation", ["numpy", "torch", "rich"]),
        ("import nestree.show", ["torch", "jinja2"]),
        (
            "import nestree; nestree.load(device='cpu')('Ann lives in Lisbon.')",
            ["transformers", "sympy", "torch._dynamo", "spacy"],
        ),
    ],
)
def test_what_is_not_needed_is_not_imported(code, libraries):
    check = f"{code}\nimport sys; found = set({libraries}) & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


PUBLIC_NAMES = """
import sys, nestree
nestree.errors.DataError, nestree.Document, nestree.data, nestree.read, nestree.write, nestree.evaluate
assert "torch" not in sys.modules
assert nestree.treecrf.log_partition and nestree.load and nestree.train and nestree.Recognizer
assert set(nestree.__all__) <= set(dir(nestree))
"""


def test_public_names_resolve_after_import_nestree():
    subprocess.run([sys.executable, "-c", PUBLIC_NAMES], check=True)


@pytest.mark.parametrize(
    ("library", "code", "what"),
    [
        ("spacy", "import nestree.integrations.spacy", "the spaCy component"),
        ("fastapi", "from nestree.serve import create_app", "nestree serve"),
        ("uvicorn", "from nestree.serve import run", "nestree serve"),
        ("ray", "from nestree.integrations.ray import Recognize; Recognize()", "Prediction on a cluster"),
    ],
)
def test_without_a_library_the_extra_is_named(library, code, what):
    script = f"import sys; sys.modules[{library!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    extra = {"fastapi": "serve", "uvicorn": "serve"}.get(library, library)
    expected = f"nestree.errors.DataError: {what} needs the library {library}: pip install 'nestree[{extra}]'."
    assert done.stderr.splitlines()[-1] == expected
    assert "During handling" not in done.stderr
