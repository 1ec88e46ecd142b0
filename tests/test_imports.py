"""Who may import whom: the rules of the house, enforced by reading the sources."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "nestree"

# From the top down; those of one line stand beside each other. Imports go downwards only.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"integrations"},
    {"training"},
    {"report", "show"},
    {"predict_files", "temperature"},
    {"pipeline"},
    {"hub"},
    {"checkpoint"},
    {"model_card"},
    {"evaluation"},
    {"model", "quantization"},
    {"losses", "decoding"},
    {"nn"},
    {"treecrf", "data"},
    {"text", "config"},
    {"types"},
    {"errors"},
]
FLOOR = {piece: floor for floor, pieces in enumerate(FLOORS) for piece in pieces}
WITHOUT_TORCH = {
    "",
    "types",
    "errors",
    "config",
    "text",
    "data",
    "evaluation",
    "model_card",
    "report",
    "show",
}  # "": nestree
ONLY_IN = {
    "transformers": {"nn.encoder"},
    "triton": {"treecrf.triton_kernels"},
    "spacy": {"integrations.spacy"},
    "numba": {"treecrf.numba_kernels", "nn.int8"},
}
# Recognizer.from_pretrained, save_pretrained and push_to_hub import them when they are called
UPWARDS = {("model", "checkpoint"), ("model", "hub")}
TORCH = {"torch", "transformers", "accelerate", "triton"}  # each of them brings torch


def modules(package: Path) -> dict[str, ast.Module]:
    """Every module of the package by its name within it, parsed; the package itself is ''."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def imports(name: str, tree: ast.Module, known: set[str], at_top: bool = False) -> Iterator[str]:
    """What a module imports: names of ours as '.data.checks', of others as 'torch'.

    `at_top`: only what runs when it is imported, so nothing inside functions or for type checkers.
    """

    def ours(full: str) -> Iterator[str]:
        parts = full.split(".")
        while parts and ".".join(parts) not in known:
            parts.pop()  # `from nestree.errors import DataError`: the module is nestree.errors
        yield "." + ".".join(parts)

    def statements(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if at_top and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if at_top and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            yield child
            yield from statements(child)

    for node in statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                head, _, rest = alias.name.partition(".")
                if head == "nestree":
                    yield from ours(rest)
                else:
                    yield head
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} imports relatively, line {node.lineno}: write nestree.…"
            head, _, rest = (node.module or "").partition(".")
            if head != "nestree":
                yield head
                continue
            for alias in node.names:
                yield from ours(f"{rest}.{alias.name}" if rest else alias.name)


def violations(package: Path) -> list[str]:
    """Every import that breaks a rule, as a sentence."""
    trees = modules(package)
    known = set(trees)
    wrong = []
    everything = {name: set(imports(name, tree, known)) for name, tree in trees.items()}
    at_top = {name: set(imports(name, tree, known, at_top=True)) for name, tree in trees.items()}

    for name, found in everything.items():
        piece = name.split(".")[0]
        if piece and piece not in FLOOR:
            wrong.append(f"{piece} has no place in the house: add it to FLOORS and to the design")
            continue
        for target in sorted(found):
            if not target.startswith("."):
                allowed = ONLY_IN.get(target)
                if allowed is not None and not any(f"{name}.".startswith(f"{place}.") for place in allowed):
                    wrong.append(f"{name} imports {target}, which belongs in {', '.join(sorted(allowed))}")
                continue
            below = target[1:].split(".")[0]
            if piece == below or (piece and not below) or below not in FLOOR:
                continue  # within one piece, or the version number
            if piece == "treecrf" and below != "errors":
                wrong.append(f"{name} imports {below}; of ours, treecrf imports errors alone")
            elif (piece, below) in UPWARDS and target not in at_top[name]:
                continue
            elif piece and FLOOR[piece] >= FLOOR[below]:
                wrong.append(f"{name} imports {below}, which is not below it")

    everything[""] = at_top.get("", set())  # the package itself may name lazily what has torch

    def brings_torch(name: str, found: dict[str, set[str]], seen: set[str]) -> str | None:
        for target in sorted(found.get(name, ())):
            if target in TORCH:
                return f"{name or 'nestree'} imports {target}"
            if target.startswith(".") and target[1:] not in seen:
                seen.add(target[1:])
                if why := brings_torch(target[1:], found, seen):
                    return f"{name or 'nestree'} imports {target[1:]}, {why}"
        return None

    for name in known:
        piece = name.split(".")[0]
        if piece in WITHOUT_TORCH and (why := brings_torch(name, everything, {name})):
            wrong.append(f"{why}: it must not bring torch")
        if piece in ("__main__", "cli", "integrations") and (why := brings_torch(name, at_top, {name})):
            wrong.append(f"{why}: import it inside the commands")
    return wrong


def test_imports_go_downwards_and_heavy_ones_stay_in_their_files():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"nn/encoder.py": "from nestree.model import Model", "model.py": ""}, "nn.encoder imports model"),
        ({"model.py": "from nestree import hub", "hub.py": ""}, "model imports hub"),
        ({"losses.py": "import nestree.decoding", "decoding.py": ""}, "losses imports decoding"),
        ({"losses.py": "from nestree import decoding", "decoding.py": ""}, "losses imports decoding"),
        ({"text.py": "def f():\n    from nestree.config import x", "config.py": ""}, "text imports config"),
        ({"treecrf/ops.py": "from nestree.types import Entity", "types.py": ""}, "errors alone"),
        ({"data/checks.py": "import torch"}, "data.checks imports torch"),
        ({"show.py": "def f():\n    import torch.nn"}, "show imports torch"),
        (
            {"show.py": "from nestree.pipeline import P", "pipeline.py": "import torch"},
            "show imports pipeline, pipe",
        ),
        ({"report.py": "import accelerate"}, "must not bring torch"),
        ({"model.py": "from transformers import AutoModel"}, "belongs in nn.encoder"),
        ({"treecrf/ops.py": "import triton.language as tl"}, "belongs in treecrf.triton_kernels"),
        ({"treecrf/reference.py": "from numba import njit"}, "belongs in nn.int8, treecrf.numba_kernels"),
        ({"cli.py": "import torch"}, "inside the commands"),
        ({"cli.py": "from nestree.model import M", "model.py": "import torch"}, "inside the commands"),
        ({"integrations.py": "import torch"}, "inside the commands"),
        ({"__init__.py": "from nestree.model import M", "model.py": "import torch"}, "must not bring torch"),
        ({"utils.py": ""}, "utils has no place"),
    ],
)
def test_each_rule_is_enforced(tmp_path, sources, expected):
    for name, source in sources.items():
        path = tmp_path / "nestree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert any(expected in sentence for sentence in violations(tmp_path / "nestree"))


def test_what_is_allowed_is_not_reported(tmp_path):
    allowed = {
        "__init__.py": "def __getattr__(name):\n    from nestree.model import Model\n    return Model",
        "cli.py": "import typer\ndef train():\n    import torch\n    from nestree.training import train",
        "training.py": "import torch\nfrom nestree import __version__\nfrom nestree.model import Model",
        "model.py": "import torch\nfrom nestree.nn import encoder\nfrom nestree.treecrf import log_partition\n"
        "def save_pretrained():\n    from nestree import checkpoint",
        "checkpoint.py": "from nestree.model import Model",
        "nn/__init__.py": "",
        "nn/encoder.py": "from transformers import AutoModel\nfrom nestree.nn import batch",
        "nn/batch.py": "from nestree.types import Sentence",
        "treecrf/__init__.py": "from nestree.treecrf.ops import log_partition",
        "treecrf/ops.py": "import torch\nfrom nestree.errors import InputError",
        "types.py": "from nestree import __version__",
        "errors.py": "",
    }
    for name, source in allowed.items():
        path = tmp_path / "nestree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert violations(tmp_path / "nestree") == []


IMPORT_ALL = """
import importlib, sys
for name in {names}:
    try:
        importlib.import_module(f"nestree.{{name}}" if name else "nestree")
    except ModuleNotFoundError as missing:  # of an extra that is not installed
        assert not missing.name.startswith("nestree"), missing
    assert "torch" not in sys.modules, f"nestree.{{name}} imports torch"
"""


def test_importing_nestree_and_its_light_parts_does_not_import_torch():
    light = [name for name in modules(PACKAGE) if name.split(".")[0] in WITHOUT_TORCH | {"cli"}]
    subprocess.run([sys.executable, "-c", IMPORT_ALL.format(names=light)], check=True)
