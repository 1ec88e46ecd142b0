"""Who is measured, and at what: ours, our reference, torch-struct and SuPar, each doing the same operations.

Peers are called as they are, on scores from which they read the same trees. `agree` checks that before
anything is timed: log Z, its gradient and the best score, against our reference in float64.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.timing import Call
from nestree.treecrf import (
    LexicalPotentials,
    PlainPotentials,
    best_trees,
    head_marginals,
    log_partition,
    use_backend,
)
from nestree.treecrf.potentials import Potentials

FORWARD, BOTH, BEST, HEADS = "forward", "forward + backward", "best trees", "head marginals"
OPERATIONS = {"lexical": (FORWARD, BOTH, BEST, HEADS), "plain": (FORWARD, BOTH, BEST)}
OURS, REFERENCE, TORCH_STRUCT, SUPAR = "ours", "reference", "torch-struct", "SuPar"


class Inputs(NamedTuple):
    potentials: Potentials
    lengths: Tensor


class Engine(NamedTuple):
    name: str
    prepare: Callable[[Inputs], Any]  # our potentials in the form that it reads
    operations: Mapping[str, Callable[[Any], Any]]
    recorded: Mapping[str, Callable[[Any], Any]]  # the same, for a CUDA graph; empty: it waits for the device
    setting: Callable[[], Any]  # the context in which to run it


def random_inputs(trees: str, batch: int, n: int, device: str, seed: int, dtype: torch.dtype) -> Inputs:
    """Normal scores of standard deviation 1, and every sentence of full length."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_()

    lengths = torch.full((batch,), n, device=device)
    span = normal(batch, n + 1, n + 1)
    if trees == "plain":
        return Inputs(PlainPotentials(span), lengths)
    arc, root, inherit = normal(batch, n, n), normal(batch, n), normal(batch, n + 1, n + 1)
    return Inputs(LexicalPotentials(span, arc, root, inherit), lengths)


def engine(name: str, device: str, supar: Path | None = None) -> Engine:
    if name == OURS:
        return own(OURS, "triton" if device == "cuda" else "numba")
    if name == REFERENCE:
        return own(REFERENCE, "reference")
    if name == TORCH_STRUCT:
        return torch_struct()
    assert supar is not None
    return from_supar(supar)


# Ours


def own(name: str, backend: str) -> Engine:
    def forward(inputs: Inputs) -> Tensor:
        with torch.no_grad():
            return log_partition(*inputs)

    def both(inputs: Inputs) -> Potentials:
        for tensor in inputs.potentials:
            if tensor is not None:
                tensor.grad = None
        log_partition(*inputs).sum().backward()
        return inputs.potentials

    def both_recorded(inputs: Inputs) -> tuple[Tensor, ...]:
        leaves = [tensor for tensor in inputs.potentials if tensor is not None]
        return torch.autograd.grad(log_partition(*inputs).sum(), leaves)

    operations: dict[str, Callable[[Inputs], Any]] = {
        FORWARD: forward,
        BOTH: both,
        BEST: lambda inputs: best_trees(*inputs),
        HEADS: lambda inputs: head_marginals(inputs.potentials, inputs.lengths),  # type: ignore[arg-type]
    }
    recorded = {} if backend == "reference" else {**operations, BOTH: both_recorded}
    return Engine(name, lambda inputs: inputs, operations, recorded, partial(use_backend, backend))


# torch-struct


@contextmanager
def quietly() -> Iterator[None]:
    """Peers warn of torch's changes since they were written; none of our concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def torch_struct() -> Engine:
    """TreeCRF, over binary trees with one label: its potentials are [batch, first word, last word, 1].

    The structure behind it, CKY_CRF, is called directly: the properties of the distribution turn gradients on
    even where they are not wanted, and would make its forward pass slower than it is.
    """
    with quietly():
        package: Any = importlib.import_module("torch_struct")

    def prepare(inputs: Inputs) -> tuple[Tensor, Tensor]:
        span = inputs.potentials.span.detach()[:, :-1, 1:, None]
        return span.contiguous().requires_grad_(), inputs.lengths

    def log_z(inputs: Any) -> Tensor:
        return package.CKY_CRF(package.LogSemiring).sum(*inputs)

    def forward(inputs: Any) -> Tensor:
        with torch.no_grad():
            return log_z(inputs)

    def both(inputs: Any) -> Tensor:
        return torch.autograd.grad(log_z(inputs).sum(), inputs[0])[0]

    def best(inputs: Any) -> Tensor:
        return torch.autograd.grad(package.CKY_CRF(package.MaxSemiring).sum(*inputs).sum(), inputs[0])[0]

    return Engine(TORCH_STRUCT, prepare, {FORWARD: forward, BOTH: both, BEST: best}, {}, quietly)


# SuPar


def from_supar(path: Path) -> Engine:
    """BiLexicalizedConstituencyCRF from a checkout of SuPar's main branch.

    It reads three scores, words from 1 on and 0 for the root: dependencies [batch, modifier, head], spans
    [batch, i, j], and heads [batch, i, j, head], zero here. It knows no `inherit`. The tensors must lie in
    memory with the batch innermost: otherwise it writes to copies of its charts, and log Z is -1e32.
    """
    structs = supar_structs(path)
    crf = structs.BiLexicalizedConstituencyCRF
    semiring: Any = importlib.import_module("supar.structs.semiring")

    def innermost(tensor: Tensor) -> Tensor:
        return tensor.movedim(0, -1).contiguous().movedim(-1, 0)

    def prepare(inputs: Inputs) -> tuple[list[Tensor], Tensor]:
        p = inputs.potentials
        assert isinstance(p, LexicalPotentials)
        batch, n = p.root.shape
        dependency = p.span.new_zeros(batch, n + 1, n + 1)
        dependency[:, 1:, 1:] = p.arc.detach().mT
        dependency[:, 1:, 0] = p.root.detach()
        head = p.span.new_zeros(batch, n + 1, n + 1, n + 1)
        return [innermost(dependency), innermost(p.span.detach()), innermost(head)], inputs.lengths

    def forward(inputs: Any) -> Tensor:
        with torch.no_grad():
            return crf(*inputs).forward(semiring.LogSemiring)

    def gradient(inputs: Any, ring: Any) -> tuple[Tensor, ...]:
        distribution = crf(*inputs)
        dependency, span, _ = distribution.scores
        return torch.autograd.grad(distribution.forward(ring).sum(), (dependency, span))

    operations = {
        FORWARD: forward,
        BOTH: lambda inputs: gradient(inputs, semiring.LogSemiring),
        BEST: lambda inputs: gradient(inputs, semiring.MaxSemiring),
    }
    return Engine(SUPAR, prepare, operations, {}, quietly)


def supar_structs(path: Path) -> ModuleType:
    """supar.structs.tree of a checkout, without its packages' __init__, which import all of its parsers."""
    if not (path / "supar" / "structs" / "tree.py").is_file():
        raise SystemExit(
            f"{path} has no supar/structs/tree.py; pass a checkout of SuPar's source to --supar."
        )
    for name in ("supar", "supar.structs", "supar.utils"):
        package = ModuleType(name)
        package.__path__ = [str(path.joinpath(*name.split(".")))]
        sys.modules[name] = package
    try:
        structs = importlib.import_module("supar.structs.tree")
    except ImportError as why:
        raise SystemExit(f"SuPar at {path} does not load: {why}; install what it lacks.") from why
    if not hasattr(structs, "BiLexicalizedConstituencyCRF"):
        raise SystemExit(f"SuPar at {path} has no BiLexicalizedConstituencyCRF; its main branch has.")
    return structs


# Do they compute the same?


def agree(peer: Engine, trees: str, device: str) -> dict[str, float]:
    """How far a peer is from us on a small batch; raises if it is too far.

    log Z and its gradient against the reference in float64, log Z against the backend to be timed in float32.
    """
    inputs = random_inputs(trees, 5, 9, device, 0, torch.float64)
    p = inputs.potentials
    if isinstance(p, LexicalPotentials):
        p = p._replace(inherit=torch.zeros_like(p.inherit).requires_grad_())
    inputs = Inputs(p, torch.tensor([9, 1, 6, 2, 8], device=device))
    with use_backend("reference"):
        log_z = log_partition(*inputs)
        log_z.sum().backward()
        score = best_trees(*inputs).score
    theirs = peer.prepare(inputs)
    with peer.setting():
        values, parts = peer.operations[FORWARD](theirs), peer.operations[BOTH](theirs)
        tree = peer.operations[BEST](theirs)
    if isinstance(p, LexicalPotentials):
        (dependency, span), (best_dependency, best_span) = parts, tree
        pairs = [(dependency[:, 1:, 1:].mT, p.arc), (dependency[:, 1:, 0], p.root), (span, p.span)]
        theirs_score = sum(
            (a * b).flatten(1).sum(1) for a, b in zip((best_dependency, best_span), theirs[0], strict=False)
        )
    else:
        pairs = [(parts[..., 0], p.span)]
        theirs_score = (tree * theirs[0]).flatten(1).sum(1)
    single = type(p)(**{k: t.detach().float() for k, t in p._asdict().items() if t is not None})
    ours = engine(OURS, device)
    with ours.setting():
        own_log_z = log_partition(single, inputs.lengths)
    difference = {
        "log Z": distance(values, log_z),
        "gradient": max(distance(a, cells(b.grad, a)) for a, b in pairs),
        "best score": distance(theirs_score, score),
        "log Z, ours": distance(values, own_log_z),
    }
    if max(list(difference.values())[:3]) > 1e-8 or difference["log Z, ours"] > 1e-4:
        raise SystemExit(f"{peer.name} and we do not compute the same: {difference}; nothing to compare.")
    return difference


def cells(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Our gradient of spans between fenceposts, where theirs is [batch, first word, last word]."""
    assert gradient is not None
    return gradient if gradient.shape == like.shape else gradient[:, :-1, 1:]


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max())


# In a process of its own


def for_memory(
    name: str, supar: Path | None, trees: str, operation: str, batch: int, n: int
) -> tuple[Call, Call]:
    """For timing.peak_cpu: the operation on a sentence of two words, and on the inputs to be measured."""
    one = engine(name, "cpu", supar)
    small = one.prepare(random_inputs(trees, 1, 2, "cpu", 0, torch.float32))
    large = one.prepare(random_inputs(trees, batch, n, "cpu", 0, torch.float32))

    def run(inputs: Any) -> Any:
        with one.setting():
            return one.operations[operation](inputs)

    return partial(run, small), partial(run, large)
