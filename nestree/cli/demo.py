"""`nestree demo`: the best tree of a sentence that was scored by hand."""

from typing import TYPE_CHECKING

from nestree.cli.running import print_page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nestree.treecrf import LexicalPotentials


def demo() -> None:
    """Draw the best tree of a sentence that was scored by hand."""
    print_page(*demo_page(), no_wrap=True, crop=True)


# The demo. Until there is a model that scores spans, arcs and roots, these numbers are the model.

WORDS = ["The", "president", "of", "the", "University", "of", "California", "met", "Iraqi", "army", "leaders"]
ENTITIES = {(0, 7): 2.5, (3, 7): 2.5, (6, 7): 1.5, (8, 11): 2.5, (8, 10): 1.5, (8, 9): 1.5}
PHRASES = {(1, 7): 0.5, (2, 7): 1.0, (4, 7): 1.0, (5, 7): 1.0, (7, 11): 1.5}  # good spans, but no entities
MODIFIERS = {
    7: {1: 2.5, 10: 2.5},  # met: president, leaders
    1: {0: 2.5, 2: 2.0},  # president: The, of
    2: {4: 2.0},  # of: University
    4: {3: 2.5, 5: 2.0},  # University: the, of
    5: {6: 2.5},  # of: California
    10: {9: 2.0, 8: 0.5},  # leaders: army, Iraqi
    9: {8: 1.5},  # army: Iraqi
}
ROOTS = {7: 2.0, 1: 0.5}  # met, president


def hand_scored() -> "LexicalPotentials":
    """A batch of one: the demo's sentence. Whatever is not written above scores 0."""
    import torch

    from nestree.treecrf import LexicalPotentials

    n = len(WORDS)
    scores = LexicalPotentials(
        torch.zeros(1, n + 1, n + 1), torch.zeros(1, n, n), torch.zeros(1, n), torch.zeros(1, n + 1, n + 1)
    )
    for (i, j), score in {**ENTITIES, **PHRASES}.items():
        scores.span[0, i, j] = score
    for head, modifiers in MODIFIERS.items():
        for modifier, score in modifiers.items():
            scores.arc[0, head, modifier] = score
    for head, score in ROOTS.items():
        scores.root[0, head] = score
    return scores


def demo_page() -> "list[RenderableType]":
    """The best tree, what each part of it is worth, and what other trees have instead."""
    from math import comb, exp

    from rich.text import Text

    from nestree.show import draw_tree, short, shortened, tabulate
    from nestree.treecrf import best_trees, head_marginals, log_partition, marginals, use_backend

    n = len(WORDS)
    scores = hand_scored()
    with use_backend("reference"):  # for one short sentence there is nothing to gain from compiling kernels
        log_z = log_partition(scores, [n]).item()
        best = best_trees(scores, [n])[0]
        part = marginals(scores, [n])
        head = head_marginals(scores, [n])[0].tolist()
    span, arc, root = part.span[0].tolist(), part.arc[0].tolist(), part.root[0, best.spans[0][2]].item()
    trees = (
        comb(2 * n - 2, n - 1) // n * 2 ** (n - 1)
    )  # binary trees, times the side of the head at each join

    entities = {(i, j): WORDS[h] for i, j, h in best.spans if (i, j) in ENTITIES}
    spans = {(i, j) for i, j, _ in best.spans}
    others = [(i, j) for i in range(n) for j in range(i + 2, n + 1) if (i, j) not in spans]
    likely = sorted(others, key=lambda s: -span[s[0]][s[1]])[:2]
    instead = ", ".join(f"{shortened(' '.join(WORDS[i:j]), 24)} {span[i][j]:.3f}" for i, j in likely)
    return [
        Text.assemble(
            (f"The best of {trees:,} trees", "bold"), " of this sentence; its parts were scored by hand"
        ),
        Text(),
        draw_tree(WORDS, best.spans, span, entities, f"root {short(root)}"),
        Text(),
        Text(
            "A line is a span: the words below it. It joins the span's head, which goes on\n"
            "upwards, to its modifier: one arc. Its number is the probability of the span.\n"
            "Heavy lines are entities; the brackets below the words name their heads.",
            "dim",
        ),
        Text(),
        tabulate(WORDS, best.spans, span, head, arc, entities),
        Text(),
        Text("P: of the span; of the span with this head; of the arc from head to modifier.", "dim"),
        Text(f"In other trees: {instead}"),
        Text(),
        Text(f"This tree scores {best.score:.3f}; log Z, over the exp(score) of all trees, is {log_z:.3f}"),
        Text.assemble(
            f"P(this tree) = exp({best.score:.3f} - {log_z:.3f}) = ",
            (f"{exp(best.score - log_z):.3f}", "bold"),
        ),
        Text(),
        Text.assemble(("Next: ", "bold"), "the five lines of README.md, docs/method.md, make test"),
    ]
