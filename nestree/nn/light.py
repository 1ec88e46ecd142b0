"""Tokenizer and encoder of a model directory, without `transformers`, where BERT is all that is needed.

They have the few things of their namesakes in `transformers` that are asked for here, and are saved as they were found.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from torch import nn

from nestree.nn.bert import Bert
from nestree.nn.encoder import warn_about_code

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
SPECIAL = ("pad", "unk", "mask", "eos", "sep", "cls", "bos")
NEEDED = {
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "pad_token_id",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob",
    "attention_probs_dropout_prob",
}  # fmt: skip


class PretrainedParts(NamedTuple):
    """What a Recognizer is built around."""

    tokenizer: Any
    transformer: nn.Module


def parts(folder: Path) -> PretrainedParts | None:
    """Those of a folder, weights to come; None: they are for `transformers`."""
    try:
        texts = {
            path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir()) if path.is_file()
        }
        known = {name: json.loads(texts[name]) for name in (CONFIG, TOKENIZER_CONFIG)}
        if not is_bert(known[CONFIG]) or TOKENIZER not in texts:
            return None
        tokenizer = LightTokenizer(texts, known[TOKENIZER_CONFIG])
        warn_about_code(folder, known[CONFIG].get("auto_map"))
        return PretrainedParts(tokenizer, Bert(Configuration(texts[CONFIG], known[CONFIG])))
    except Exception:  # files are not what they should be: `transformers` knows better, or says what is wrong
        return None


def is_bert(config: dict[str, Any]) -> bool:
    """Is it as bert.py has it?"""
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder")
        and not config.get("add_cross_attention")
        and all(isinstance(config.get(name), int | float) for name in NEEDED)
        and config["hidden_size"] % config["num_attention_heads"] == 0
    )


class Configuration:
    """What config.json says."""

    def __init__(self, text: str, values: dict[str, Any]) -> None:
        vars(self).update(values, _attn_implementation="sdpa", _text=text)

    def save_pretrained(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / CONFIG).write_text(vars(self)["_text"], encoding="utf-8")


class LightTokenizer:
    """The backend of a fast tokenizer, and what its configuration says."""

    is_fast = True

    def __init__(self, texts: dict[str, str], config: dict[str, Any]) -> None:
        self.backend_tokenizer = Tokenizer.from_str(texts[TOKENIZER])
        self.model_max_length = int(config["model_max_length"])
        self.texts = {name: text for name, text in texts.items() if name != CONFIG}
        for name in SPECIAL:
            token = config.get(f"{name}_token")
            written = token["content"] if isinstance(token, dict) else token
            number = None if written is None else self.backend_tokenizer.token_to_id(written)
            setattr(self, f"{name}_token_id", number)

    def save_pretrained(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in self.texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
