"""Pipeline: text in, documents with entities out.

>>> ner = load("my-model")                                                        # doctest: +SKIP
>>> [(e.text, e.label, e.head.text) for e in ner("Iraqi army leaders met.").entities]  # doctest: +SKIP
[('Iraqi army leaders', 'person', 'leaders'), ('Iraqi army', 'organization', 'army'), ('Iraqi', 'place', 'Iraqi')]
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, overload

import torch

from nestree import checkpoint
from nestree.config import Settings
from nestree.errors import InputError, NestreeError
from nestree.model import Recognizer
from nestree.nn.devices import best_device
from nestree.nn.quick import obstacle, quick
from nestree.pipeline.given import as_forbidden, as_int, as_known, check_labels, in_words, with_borders
from nestree.pipeline.sentences import LONGEST, Asked, Told, predict
from nestree.sentence import Document, Sentence, Span
from nestree.text import split

AT_ONCE = 64  # texts of a stream that are read together
WORDS_AT_ONCE = 40_000  # of them, at most: what bounds the memory

Precision = Literal["auto", "float32", "int8"]


def load(
    model: str | Path | None = None,
    device: str = "auto",
    longest: int = LONGEST,
    precision: Precision = "auto",
    verify: bool = True,
) -> "Pipeline":
    """The model in the box, of a directory, or of a name on the Hugging Face hub, ready to read text.

    `longest`: sentences of more words are read through windows that overlap. `precision` on a CPU: "int8", several
    times as fast as "float32" on processors that have instructions for it; "auto" is "int8" there for a model whose
    weights are stored in 8 bits, such as the one in the box.
    Without `verify`, its files are not compared with manifest.json.
    """
    words = as_int(longest)
    if words is None or words < 4:
        raise InputError(
            f"longest is {longest!r}; windows of sentences need a whole number of words, 4 at least."
        )
    from nestree import hub

    loaded = checkpoint.load(hub.find(model), best_device(device), verify=verify)
    return Pipeline(loaded, words, precision)


class Pipeline:
    """Finds nested entities in text."""

    def __init__(self, model: Recognizer, longest: int = LONGEST, precision: Precision = "auto") -> None:
        self.model, self.longest = model, longest
        self.quick: dict[str, torch.nn.Module] = {}  # what reads in place of parts of the model
        if in_eight_bits(model, precision):
            parts = {"encoder": model.encoder, "scorer": model.scorer, "forms": model.forms}
            self.quick = {name: quick(part) for name, part in parts.items() if part is not None}

    @property
    def reader(self) -> Recognizer:
        """The model, or one that reads in 8 bits, with the weights of the moment when this pipeline was made."""
        if not self.quick or self.device.type != "cpu":
            return self.model
        made = copy.copy(self.model)
        made._modules = {**self.model._modules, **self.quick}
        return made

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.labels

    @property
    def device(self) -> torch.device:
        return self.model.device

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a string is an iterable of strings
        self,
        texts: str,
        *,
        known: Iterable[Sequence[Any]] = ...,
        forbidden: Iterable[Sequence[Any]] = ...,
        threshold: float | None = ...,
        trees: bool = ...,
    ) -> Document: ...
    @overload
    def __call__(
        self,
        texts: Iterable[str],
        *,
        known: Iterable[Sequence[Any]] = ...,
        forbidden: Iterable[Sequence[Any]] = ...,
        threshold: float | None = ...,
        trees: bool = ...,
    ) -> list[Document]: ...

    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        known: Iterable[Sequence[Any]] = (),
        forbidden: Iterable[Sequence[Any]] = (),
        threshold: float | None = None,
        trees: bool = True,
    ) -> Document | list[Document]:
        """A text with its entities; several, in their order.

        `known`: what are entities, each (start, end), (start, end, label) or (start, end, label, head), in
        characters; a head is a place in the text or (start, end). White space at either end of a span does not count.
        `forbidden`: what are none, (start, end), or none of this label, (start, end, label). All else is found given
        that. `threshold`: the probability that an entity needs; the higher, the more precise and the fewer. `trees`:
        keep the trees too, as `document.tree`.
        """
        if isinstance(texts, str):
            entities = [as_known(each, texts) for each in known]
            others = [as_forbidden(each, texts) for each in forbidden]
            check_labels(entities, others, self.model.labels)
            document = self.split(texts, [(each.start, each.end) for each in entities])
            told = in_words(document, entities, others)
            return self.recognised([document], self.asked(threshold, trees), told)[0]
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise InputError(f"a text must be a string, or several of them, and this is {texts!r:.60}.")
        if tuple(known) or tuple(forbidden):
            raise InputError("known and forbidden are places in one text; give texts one by one with them.")
        return list(self.pipe(texts, threshold=threshold, trees=trees))

    def words(self, sentences: Iterable[Sequence[str]], *, threshold: float | None = None) -> list[Sentence]:
        """Sentences that are split into words already; entities are counted in words."""
        if isinstance(sentences, str | bytes | Sentence) or not isinstance(sentences, Iterable):
            raise InputError(
                f"sentences must be lists of words, and this is {sentences!r:.60}. Give a list of such lists."
            )
        asked = self.asked(threshold, trees=True)
        return predict(self.reader, list(map(of_words, sentences)), asked=asked)

    def pipe(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = AT_ONCE,
        threshold: float | None = None,
        trees: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Iterator[Document]:
        """The documents of a stream of texts, in their order; never more than `batch_size` are held.

        Sentences of like length are read together, whichever texts they are of. With on_error="skip" a text that
        fails becomes a document without sentences that says why in extra["error"].
        """
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise InputError(f"a stream has many texts, and this is {texts!r:.60}. Give a list of texts.")
        if (as_int(batch_size) or 0) < 1:
            raise InputError(f"batch_size is {batch_size!r}; it must be a whole number, 1 or more.")
        if on_error not in ("raise", "skip"):
            raise InputError(f'on_error is {on_error!r}; it must be "raise" or "skip".')
        asked = self.asked(threshold, trees)
        held: list[Document] = []
        words = first = number = 0
        for number, text in enumerate(texts):
            held.append(self.attempt(text, number, on_error))
            words += sum(len(sentence.words) for sentence in held[-1].sentences)
            if len(held) >= batch_size or words >= WORDS_AT_ONCE:
                yield from self.all_recognised(held, asked, first, on_error)
                held, words, first = [], 0, number + 1
        yield from self.all_recognised(held, asked, first, on_error)

    def split(self, text: str, keep: Sequence[Span] = ()) -> Document:
        """The document of a text, with words and sentences as the model knows them; no entities yet."""
        if not isinstance(text, str):
            raise InputError(f"a text must be a string, and this is {text!r:.60}.")
        rules = self.model.text_rules
        sentences = []
        for start, end, words in split(text, rules.words, rules.sentences, keep):
            if keep:
                words = with_borders(words, keep)
            sentences.append(
                Sentence(
                    tuple(text[i:j] for i, j in words),
                    (),
                    text[start:end],
                    tuple((i - start, j - start) for i, j in words),
                    start,
                )
            )
        return Document(tuple(sentences), text)

    def recognised(
        self, documents: Sequence[Document], asked: Asked, told: Told | None = None
    ) -> list[Document]:
        """These documents with entities; what is `told` is of the sentences of all of them, in a row."""
        sentences = self.model.sentences_of(documents)
        found = iter(predict(self.reader, sentences, asked=asked, known=told))
        return [replace(d, sentences=tuple(next(found) for _ in d.sentences)) for d in documents]

    def all_recognised(
        self, documents: Sequence[Document], asked: Asked, first: int, on_error: str
    ) -> list[Document]:
        """The same; if that fails, one by one, to find the text that is to blame."""
        try:
            return self.recognised(documents, asked)
        except Exception:
            found = []
            for number, document in enumerate(documents, first):
                try:
                    found += self.recognised([document], asked)
                except Exception as why:
                    found.append(failed(document.text, number, why, on_error))
            return found

    def attempt(self, text: str, number: int, on_error: str) -> Document:
        try:
            return self.split(text)
        except Exception as why:
            return failed(text, number, why, on_error)

    def asked(self, threshold: float | None, trees: bool) -> Asked:
        settings: Settings | None = None
        if threshold is not None:
            number = isinstance(threshold, Real) and not isinstance(threshold, bool)
            if not (number and 0 <= threshold < 1):
                raise InputError(
                    f"threshold is {threshold!r}; it must be a number, 0 or more and less than 1."
                )
            settings = self.model.settings.changed([f"decoding.threshold={float(threshold)}"])
        return Asked(scored=True, trees=trees, settings=settings, longest=self.longest)


def in_eight_bits(model: Recognizer, precision: Precision) -> bool:
    """Is this how the model shall read?"""
    if precision not in ("auto", "float32", "int8"):
        raise InputError(f'precision is {precision!r}; it must be "auto", "float32" or "int8".')
    why = obstacle() if model.device.type == "cpu" else "it is for a CPU"
    if precision == "int8" and why:
        raise InputError(f'precision="int8" is not to be had: {why}. Leave it at "auto".')
    return precision == "int8" or (precision == "auto" and model.eight_bits and why is None)


def of_words(given: Any) -> Sentence:
    """A sentence that is split already. A string is iterable, too, but its parts are no words."""
    if isinstance(given, Sentence):
        return given
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError(f"a sentence must be a list of words, and this is {given!r:.60}. Split it first.")
    return Sentence(tuple(given))


def failed(text: Any, number: int, why: Exception, on_error: str) -> Document:
    """An empty document in place of a text that failed, or an error that names it."""
    what = why if isinstance(why, NestreeError) else f"{type(why).__name__}: {why}"
    sentence = f"text {number} ({text!r:.40}) failed: {what}"
    if on_error == "raise":
        raise InputError(sentence) from why
    return Document((), text if isinstance(text, str) else None, extra={"error": sentence})
