"""Recognizer: sentences -> batch -> vectors -> scores -> losses, or entities."""

import dataclasses
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from nestree.config import Settings
from nestree.decoding import UNIT_TEMPERATURES, DecodedBatch, Temperatures, decode, decode_batch
from nestree.decoding.constraints import Constraints, apply_constraints
from nestree.errors import InputError, ModelError
from nestree.evaluation import Evaluation
from nestree.losses import Losses, compute_losses
from nestree.nn.batch import Batch, Collator
from nestree.nn.devices import select_device
from nestree.nn.encoder import (
    Encoder,
    Vectors,
    load_pretrained,
    load_saved,
    load_saved_tokenizer,
    load_tokenizer,
    max_input_length,
)
from nestree.nn.features import read_vectors
from nestree.nn.int8 import to_int8
from nestree.nn.onnx import Graphs, OnnxNetwork, export_graphs
from nestree.nn.scorers import HeadPrior, Scorer, Scores
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.types import Document, Entity, Sentence, with_context

WORDS_FILE = "words.json"  # the words that have static vectors, beside the files of the encoder


class TextRules(NamedTuple):
    """How text is split into words and sentences: see `nestree.text.split`."""

    words: str = "treebank"
    sentences: str = "rules"


class Recognizer(nn.Module):
    """Finds nested entities. It consists of its settings, its labels and its weights."""

    words: tuple[str, ...] | None = None  # that have static vectors

    def __init__(
        self, settings: Settings, labels: Sequence[str] = (), encoder: str | Path = "", *, pretrained: bool = True
    ):
        """`encoder`: a folder or hub name; not `pretrained`: a folder of `save_encoder`, weights uninitialized."""
        super().__init__()
        if not isinstance(settings, Settings):
            raise InputError(
                f"settings are {settings!r:.60}; a new model needs Settings, labels and an encoder. "
                "`Recognizer.from_pretrained` loads a trained one."
            )
        self.set_labels(settings, labels)
        transformer: Any
        if pretrained:
            self.tokenizer, transformer = load_tokenizer(str(encoder)), load_pretrained(str(encoder))
        else:
            self.tokenizer, transformer = load_saved(str(encoder))

        vectors, self.words, self.dimensions = None, None, 0
        if settings.encoder.word_vectors and pretrained:
            self.words, vectors = read_vectors(Path(settings.encoder.word_vectors))
            self.dimensions = vectors.shape[1]
        elif settings.encoder.word_vectors:
            self.words, self.dimensions = read_vector_vocabulary(Path(encoder) / WORDS_FILE)
        self.encoder = Encoder(settings.encoder, transformer, len(self.words or ()), self.dimensions)
        if vectors is not None:
            self.encoder.vectors.weight.data[1:] = torch.from_numpy(vectors)
        self.scorer = Scorer(self.encoder.size, settings.model, len(labels))
        embeddings = transformer.get_input_embeddings()
        self.head_prior = HeadPrior(embeddings.embedding_dim) if settings.model.head_prior else None
        max_length = max_input_length(self.tokenizer, transformer)
        self.collator = self.make_collator(max_length, embeddings.num_embeddings, str(encoder))
        self.float()  # whatever PyTorch's default dtype is

    def set_labels(self, settings: Settings, labels: Sequence[str]) -> None:
        """Set everything but the network."""
        if not labels or len(set(labels)) != len(labels):
            raise ModelError(f"labels are {list(labels)}; a model needs at least one, and each only once.")
        self.settings, self.labels = settings, tuple(labels)
        self.temperatures: Temperatures = UNIT_TEMPERATURES  # fitted on dev data when training ends
        self.text_rules = TextRules()  # how the texts of its training data were split
        self.scores: dict[str, Evaluation] = {}  # after nestree.train: the evaluations on "dev" and "test"
        self.is_quantized = False  # whether its weights were stored in 8 bits
        self.is_int8 = False  # whether it is what `to_int8` returns
        self.card = ""  # the model card, in Markdown; "": one that is written from settings and labels

    def make_collator(self, max_length: int, embeddings: int, encoder: str) -> Collator:
        """`max_length`: subwords that the encoder reads at once. `embeddings`: how many subwords it has."""
        tokenizer = SubwordTokenizer(self.tokenizer, max_length, self.settings.encoder.context)
        tokenizer.check_fits(embeddings, encoder)
        return Collator(
            tokenizer,
            self.labels,
            trees=self.settings.model.structure != "none",
            shapes=self.settings.encoder.word_shape_size > 0,
            vectors=None if self.words is None else {word: row for row, word in enumerate(self.words, 1)},
        )

    def sentences_with_context(self, documents: Iterable[Document]) -> list[Sentence]:
        """The sentences of documents, with words of their neighbours as context if the settings ask for it."""
        documents = with_context(documents, self.settings.encoder.context)
        return [sentence for document in documents for sentence in document.sentences]

    def collate(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch with the entities of the sentences as gold."""
        return self.collator.collate(sentences)

    def collate_words(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch for decoding; entities of the sentences are ignored."""
        return self.collator.words(sentences)

    def forward(self, batch: Batch) -> Scores:
        if isinstance(batch, str | list):
            raise InputError(
                f"a Recognizer scores batches, and this is {batch!r:.40}. nestree.Pipeline(model)(text) finds entities."
            )
        return self.score_vectors(self.encoder(batch), batch)

    def score_vectors(self, vectors: Vectors, batch: Batch) -> Scores:
        """The scores of a batch whose words are encoded already."""
        scores: Scores = self.scorer(vectors, batch.lengths)
        if self.head_prior is None:
            return scores
        return dataclasses.replace(scores, head_prior=self.head_prior(self.encoder.lexical_embeddings(batch)))

    def losses(self, batch: Batch) -> Losses:
        """The losses of a batch with gold."""
        if batch.gold is None:
            raise ModelError("this batch has no gold entities; make it with collate, not collate_words.")
        return compute_losses(self(batch), batch.gold, self.settings, batch.soft_targets)

    def decode(self, batch: Batch) -> list[tuple[Entity, ...]]:
        """The entities of each sentence."""
        return decode(self(batch), self.settings, self.labels)

    def decode_scores(
        self,
        scores: Scores,
        constraints: Constraints | None = None,
        settings: Settings | None = None,
        *,
        scored: bool = False,
        trees: bool = False,
        label_thresholds: Mapping[str, float] | None = None,
    ) -> DecodedBatch:
        """Decode scores: entities as tensors. `settings`: others than the model's own.

        `label_thresholds`: the lowest probability of an entity by label, instead of `decoding.threshold`; labels that
        it leaves out are not predicted.
        """
        settings = settings or self.settings
        if constraints is not None:
            scores = apply_constraints(scores, constraints, settings, self.labels, self.temperatures)
        thresholds = None
        if label_thresholds is not None:
            thresholds = [label_thresholds.get(label, math.inf) for label in self.labels]
        return decode_batch(scores, settings, self.temperatures, scored=scored, trees=trees, thresholds=thresholds)

    def to_int8(self) -> "Recognizer":
        """A copy for CPU inference in 8 bits; it shares the tokenizer, its caches and the settings."""
        if self.is_int8:
            raise InputError("this model is a copy in 8 bits already. Give the model that it was made of.")
        int8 = to_int8(self, shared=(self.tokenizer, self.collator, self.settings))
        int8.is_int8 = True
        return int8

    def to_onnx(self, int8: bool = False) -> Graphs:
        """ONNX graphs that compute the scores, by file name; see `nestree.nn.onnx`."""
        words = [Sentence(("one", "two", "three")), Sentence(("a",) * 12), Sentence(("four",))]
        tokenizer = self.collator.tokenizer
        embeddings = self.encoder.transformer.get_input_embeddings().num_embeddings  # type: ignore[operator]
        metadata = {"max_length": tokenizer.longest, "embeddings": embeddings}
        with eval_mode(self):
            return export_graphs(self, self.collate_words(words), metadata, int8)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str = "cpu",
        revision: str | None = None,
        token: str | None = None,
        verify: bool = True,
    ) -> "Recognizer":
        """The model of a directory, or of a name on the Hugging Face hub; `verify`: compare it with its manifest."""
        from nestree import checkpoint, hub

        folder = hub.resolve(name, revision=revision, token=token)
        return checkpoint.load(folder, select_device(device), verify=verify)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the whole model to a new directory, or nothing."""
        from nestree import checkpoint

        checkpoint.save(self, Path(folder), self.card)

    def push_to_hub(self, name: str, **options: Any) -> str:
        """Upload it to the hub as OWNER/NAME; returns its address. `options`: see `nestree.hub.push`."""
        from nestree import hub

        with tempfile.TemporaryDirectory() as temporary:
            self.save_pretrained(Path(temporary) / "model")
            return hub.push(Path(temporary) / "model", name, **options)

    def __repr__(self) -> str:
        millions = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        return self.describe(f"{millions:.1f} million parameters")

    def describe(self, network: str) -> str:
        """The repr of a model with this network."""
        labels = ", ".join([*self.labels[:10], *["..."] * (len(self.labels) > 10)])
        encoder = Path(self.settings.encoder.path).name
        return f"Recognizer({encoder}, {network}, {len(self.labels)} labels: {labels})"

    @property
    def device(self) -> torch.device:
        return self.encoder.mix.factor.device  # faster than to iterate over all parameters

    def save_encoder(self, folder: str | Path) -> None:
        """Write the tokenizer, the encoder's configuration and the words with static vectors; no weights."""
        transformer: Any = self.encoder.transformer
        self.tokenizer.save_pretrained(str(folder))
        transformer.config.save_pretrained(str(folder))
        if self.words is not None:
            table = {"dimensions": self.dimensions, "words": self.words}
            text = json.dumps(table, ensure_ascii=False, allow_nan=False)
            (Path(folder) / WORDS_FILE).write_text(text, encoding="utf-8")


class OnnxRecognizer(Recognizer):
    """A model that `nestree export` wrote: ONNX Runtime computes its scores, on a CPU. It cannot be trained."""

    def __init__(self, settings: Settings, labels: Sequence[str], encoder: Path, network: OnnxNetwork):
        """`encoder`: the folder of the tokenizer."""
        nn.Module.__init__(self)
        self.set_labels(settings, labels)
        self.network = network
        self.encoder_files = {path.name: path.read_bytes() for path in encoder.iterdir() if path.is_file()}
        self.tokenizer = load_saved_tokenizer(str(encoder))
        try:
            max_length, embeddings = (int(network.metadata[name]) for name in ("max_length", "embeddings"))
        except (KeyError, ValueError):
            raise ModelError(f"{network.place} is damaged: a graph has no metadata. Export it again.") from None
        self.collator = self.make_collator(max_length, embeddings, str(encoder))
        if (size := network.label_count) not in (None, len(labels)):
            raise ModelError(
                f"{network.place} has graphs for {size} labels, and labels.json names {len(labels)}. Export it again."
            )

    def forward(self, batch: Batch) -> Scores:
        return self.network(batch)

    def losses(self, batch: Batch) -> Losses:
        raise ModelError("a model that was exported to ONNX cannot be trained. Train the one it was made of.")

    def to_int8(self) -> "Recognizer":
        raise InputError(
            f"this model runs in ONNX Runtime, in {self.network.precision}: to change that, export it again."
        )

    def to_onnx(self, int8: bool = False) -> Graphs:
        return self.network.graphs

    def to(self, device: Any) -> "OnnxRecognizer":  # type: ignore[override]
        if torch.device(device).type != "cpu":
            raise InputError(f"a model that was exported to ONNX runs on a CPU, not on {device}.")
        return self

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def save_encoder(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.encoder_files.items():
            (Path(folder) / name).write_bytes(content)

    def __repr__(self) -> str:
        runtime = f"onnxruntime {self.network.runtime.__version__}"
        return self.describe(f"{runtime} in {self.network.precision}")


def read_vector_vocabulary(path: Path) -> tuple[tuple[str, ...], int]:
    """The words that have static vectors, and the dimensions of these."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return tuple(table["words"]), int(table["dimensions"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ModelError(
            f"{path}: the words of the static vectors cannot be read ({error}); the model is incomplete."
        ) from error


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """A context in which all modules are in evaluation mode; each returns to its own mode afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def autocast(device: torch.device) -> "torch.autocast | nullcontext[None]":
    """Autocast to bf16 on CUDA; elsewhere nothing."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
