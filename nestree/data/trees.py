"""The trees of sentences as JSON objects, checked when they are read.

{"spans": [[0, 2, 1], [0, 1, 0], [1, 2, 1]], "arcs": [[1, 0]], "root": 1, "probabilities": [1.0, 1.0, 1.0]}
"""

from typing import Any

from nestree.errors import DataError
from nestree.sentence import Tree

TREE_KEYS = {"spans", "arcs", "root", "probabilities"}


def from_tree(given: Any, n: int, place: str) -> Tree | None:
    """The tree of a sentence of n words."""
    if given is None:
        return None
    if not isinstance(given, dict) or "spans" not in given or not given.keys() <= TREE_KEYS:
        raise DataError(
            f"{place}: `tree` must be an object with spans, arcs, root and probabilities, and is {given!r:.60}. "
            "If it is something else, give it another name."
        )
    chances = given.get("probabilities", [])
    if not isinstance(chances, list) or not all(type(p) in (int, float) and 0 <= p <= 1 for p in chances):
        raise DataError(
            f"{place}: `probabilities` of `tree` must be numbers from 0 to 1, and are {chances!r:.60}."
        )
    tree = Tree(
        tuple((i, j, h) for i, j, h in lists(given["spans"], 3, "spans", place)),
        tuple((h, m) for h, m in lists(given.get("arcs", []), 2, "arcs", place)),
        given.get("root"),
        tuple(chances),
    )
    check_tree(tree, n, place)
    return tree


def check_tree(tree: Tree, n: int, place: str) -> None:
    for i, j, head in tree.spans:
        if not (are_words(n, i) and type(j) is int and i < j <= n):
            raise DataError(
                f"{place}: {[i, j, head]} of `tree` is no span of the sentence, which has {n} words."
            )
        if head is not None and not (type(head) is int and i <= head < j):
            raise DataError(
                f"{place}: the head of {[i, j, head]} of `tree` must be one of its words, or null."
            )
    for head, modifier in tree.arcs:
        if not are_words(n, head, modifier):
            raise DataError(f"{place}: {[head, modifier]} of `tree` is no arc between words 0 to {n - 1}.")
    if tree.root is not None and not are_words(n, tree.root):
        raise DataError(f"{place}: `root` of `tree` must be a word, 0 to {n - 1}, and is {tree.root!r:.40}.")
    if tree.probabilities and len(tree.probabilities) != len(tree.spans):
        raise DataError(
            f"{place}: `tree` has {len(tree.spans)} spans and {len(tree.probabilities)} probabilities. Give one for "
            "each span, or none."
        )


def lists(given: Any, length: int, name: str, place: str) -> list[list[Any]]:
    if not isinstance(given, list) or not all(isinstance(x, list) and len(x) == length for x in given):
        raise DataError(
            f"{place}: `{name}` of `tree` must be lists of {length} words, and are {given!r:.60}."
        )
    return given


def are_words(n: int, *given: Any) -> bool:
    return all(type(word) is int and 0 <= word < n for word in given)


def to_tree(tree: Tree) -> dict[str, Any]:
    record: dict[str, Any] = {"spans": [list(span) for span in tree.spans]}
    if tree.arcs:
        record["arcs"] = [list(arc) for arc in tree.arcs]
    if tree.root is not None:
        record["root"] = tree.root
    if tree.probabilities:
        record["probabilities"] = list(tree.probabilities)
    return record
