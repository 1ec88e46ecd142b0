"""Small things that many tests are made of: a tiny encoder with random weights, settings for it, eight sentences."""

from collections.abc import Sequence
from pathlib import Path

import torch
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from nestree.config import Settings
from nestree.model import Recognizer
from nestree.types import Document, Entity, Sentence

FAMILIES = ["bert", "roberta", "mpnet", "deberta", "deberta-v2", "electra", "modernbert"]
BYTE_LEVEL = ["roberta", "deberta", "modernbert"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,-'"
HIDDEN = 32


def sentence(text: str, *entities: str) -> Sentence:
    """sentence("the mayor of Lisbon", "0-4@1 PER", "3-4 GPE"): @1 is the head."""
    found = []
    for entity in entities:
        span, label = entity.split()
        span, _, head = span.partition("@")
        start, end = span.split("-")
        found.append(Entity(int(start), int(end), label, int(head) if head else None))
    return Sentence(text.split(), found)


@st.composite
def any_entity(draw: st.DrawFn) -> Entity:
    """Of one to four words, label A or B; some cross others."""
    start = draw(st.integers(0, 5))
    return Entity(start, start + draw(st.integers(1, 4)), draw(st.sampled_from("AB")))


SENTENCES = [
    sentence("the mayor of Lisbon met the president", "0-4 PER", "3-4 GPE", "5-7 PER"),
    sentence("police in Oslo arrested two members of the group", "0-3 ORG", "2-3 GPE", "4-9 PER", "7-9 ORG"),
    sentence("she left", "0-1 PER"),
    sentence("the Bank of Portugal", "0-4 ORG", "3-4 GPE"),  # an entity is the whole sentence
    sentence("it rained all night"),  # none at all
    sentence("Lisbon", "0-1 GPE"),  # one word
    sentence("fans of the club in the north of Oslo sang", "0-9 PER", "2-9 ORG", "5-9 LOC", "8-9 GPE"),
    sentence("Oslo Lisbon Portugal", "0-1 GPE", "1-2 GPE", "2-3 GPE"),  # every word is an entity
]  # no span has two labels: one-stage models cannot express that
DOCUMENTS = [Document((each,)) for each in SENTENCES]
SHORT = [
    sentence("Lisbon mayor", "0-2 PER", "0-1 GPE"),
    sentence("Oslo police", "0-2 ORG", "0-1 GPE"),
    sentence("she left", "0-1 PER"),
    sentence("Bank Portugal", "0-2 ORG", "1-2 GPE"),
    sentence("it rained"),
    sentence("Lisbon", "0-1 GPE"),
    sentence("club fans", "0-2 PER", "0-1 ORG"),
    sentence("Oslo Lisbon", "0-1 GPE", "1-2 GPE"),
]  # each span is in every tree of its sentence
LABELS = ["GPE", "LOC", "ORG", "PER"]
TWO_LABELS = sentence("the city of Lisbon voted", "0-4 GPE", "0-4 ORG", "3-4 GPE")


def encoder(folder: Path, family: str = "bert", longest: int = 64, seed: int = 0) -> Path:
    """A folder with a random encoder of two layers and a tokenizer that knows single letters."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer() if family in BYTE_LEVEL else letter_tokenizer()
    tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": tokenizer.pad_token_id}
    sizes |= dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.cls_token_id)
    sizes |= dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.sep_token_id)
    # these two count positions from the padding id on
    sizes["max_position_embeddings"] = longest + (2 if family in ("roberta", "mpnet") else 0)
    if family == "electra":
        sizes["embedding_size"] = HIDDEN
    if family == "deberta-v2":
        sizes["relative_attention"] = True
    config = AutoConfig.for_model(family, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModel.from_config(config).save_pretrained(folder)
    return folder


def write_text(path: Path, text: str) -> Path:
    """The path of a new file with this text."""
    path.write_text(text, encoding="utf-8")
    return path


def write_bytes(path: Path, data: bytes) -> Path:
    """The path of a new file with these bytes."""
    path.write_bytes(data)
    return path


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """Lower case; each letter is a subword, as in BERT's vocabulary; anything else is unknown."""
    subwords = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({subword: k for k, subword in enumerate(subwords)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return wrap_tokenizer(tokenizer)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Each byte is a subword, and so is the blank before a word."""
    subwords = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({subword: k for k, subword in enumerate(subwords)}, [], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrap_tokenizer(tokenizer)


def wrap_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


SMALL = [
    "encoder.mix_layers=2", "encoder.dropout=0", "encoder.word_shape_size=8", 'encoder.word_vectors=""',
    "encoder.lstm_size=16", "encoder.lstm_dropout=0", "model.mlp_size=32", "model.label_mlp_size=16", "model.dropout=0",
    "training.encoder_lr=2e-3", "training.lr=5e-3", "training.rho=0",
]  # fmt: skip


def settings(recipe: str = "default", *changes: str) -> Settings:
    """A recipe for a tiny model that learns quickly."""
    rank = ["model.rank=32"] if Settings.read(recipe).model.rank else []
    return Settings.read(recipe).with_overrides([*SMALL, *rank, *changes])


def model(
    folder: Path, recipe: str = "default", *changes: str, labels: Sequence[str] = LABELS, seed: int = 0
) -> Recognizer:
    """An untrained model with this encoder."""
    torch.manual_seed(seed)
    return Recognizer(settings(recipe, f"encoder.path={folder}", *changes), labels, folder)


def train(model: Recognizer, sentences: list[Sentence], updates: int, lr: float = 5e-3) -> Recognizer:
    """The model after so many updates on these sentences."""
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    for _ in range(updates):
        optimizer.zero_grad()
        model.losses(model.collate(sentences)).total.backward()
        optimizer.step()
    return model.eval()


def learned(folder: Path, updates: int = 20) -> Recognizer:
    """A model with this encoder, after so many updates on the eight sentences."""
    return train(model(folder, seed=3), SENTENCES, updates)
