"""Model directories: save, load, check.

    config.toml          the settings
    labels.json          the labels in their order, how texts are split, temperatures, and the version of this layout
    encoder/             the tokenizer and the encoder's configuration, as `transformers` writes them
    weights.safetensors  all weights, the encoder's too; it is written last, so a directory without it is incomplete
    README.md            the model card
    manifest.json        size and SHA-256 of every file that predictions depend on: all but the card

A model that was exported to ONNX has scores.onnx and, if it has two stages, labels.onnx in place of its weights.

Weights are float32 or, in a quantized model, 8 bits each. No pickle is written or read. Whatever is wrong with a
directory becomes a ModelError. A writer that replaces a file removes the manifest first and writes it again when all
files are final: a directory in training has none, and one that a killed process left never contradicts it.
"""

import hashlib
import json
import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nestree import __version__
from nestree.config import Settings
from nestree.data.io import atomic_path
from nestree.decoding import UNIT_TEMPERATURES, Temperatures
from nestree.errors import DataError, InputError, ModelError, NestreeError
from nestree.model import OnnxRecognizer, Recognizer, TextRules
from nestree.model_card import Card
from nestree.nn import bert
from nestree.nn.onnx import LABEL_GRAPH, SCORE_GRAPH, Graphs, OnnxNetwork
from nestree.quantization import SCALES, dequantize_state, quantize_state
from nestree.text import SENTENCE_RULES, WORD_STYLES

FORMAT = 2
CONFIG, LABELS, ENCODER, WEIGHTS, CARD, MANIFEST = (
    "config.toml", "labels.json", "encoder", "weights.safetensors", "README.md", "manifest.json",
)  # fmt: skip
MANIFEST_FORMAT = 1
IN_MANIFEST = (CONFIG, LABELS, ENCODER, WEIGHTS, SCORE_GRAPH, LABEL_GRAPH)
TRAINING = "training"  # the state of a training run, which is not part of the model
LARGEST_TEMPERATURE = 1e6
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # raised by damaged JSON
log = logging.getLogger(__name__)
WEIGHTS_NOTE = "## Weights\n\n{} (`nestree {}`); scores above were measured before."  # of model cards
BUNDLED = Path(__file__).resolve().parent / "models" / "gum-minilm"


class ModelInfo(NamedTuple):
    """The content of labels.json."""

    labels: Sequence[str]
    text: TextRules = TextRules()
    temperatures: Temperatures = UNIT_TEMPERATURES


def bundled_model() -> Path:
    """The directory of the model that comes with nestree."""
    if not (BUNDLED / WEIGHTS).is_file():
        raise ModelError(f"this copy of nestree came without a model: there is none in {BUNDLED}. Name one.")
    return BUNDLED


def save(model: Recognizer, folder: Path, card: str = "", to_onnx: Callable[[], Graphs] | None = None) -> None:
    """Write the whole model to a new directory, or nothing. `to_onnx`: makes graphs, in place of its weights.

    The weights of a quantized model stay in 8 bits, unless they were changed to others that 8 bits cannot express.
    """
    if model.is_int8:
        raise ModelError("this model is a copy in 8 bits, which cannot be stored. Save the model that it was made of.")
    if isinstance(model, OnnxRecognizer):
        to_onnx = model.to_onnx
    weights = model.state_dict()
    if model.is_quantized:
        quantized = quantize_state(weights)
        restored = dequantize_state(quantized)
        if all(torch.equal(value, restored[name]) for name, value in weights.items()):
            weights = quantized
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        save_without_weights(model, temporary, card)
        if to_onnx is None:
            save_weights(weights, temporary)
        else:
            write_text(temporary / CONFIG, without_local_path(model.settings).to_toml())
            for name, content in to_onnx().items():
                (temporary / name).write_bytes(content)
        save_manifest(temporary)


def export(model: Recognizer, folder: Path, int8: bool = False) -> None:
    """Write a model to a new directory, as ONNX graphs that `load` runs with ONNX Runtime; in 8 bits if `int8`."""
    if isinstance(model, OnnxRecognizer):
        raise ModelError("this model is exported to ONNX already. Export the one it was made of.")
    card = (model.card or str(Card(model.settings, model.labels))).rstrip()
    precision = "8 bits" if int8 else "float32"
    card += f"\n\n{WEIGHTS_NOTE.format(f'An ONNX graph in {precision}', 'export')}\n"
    save(model, folder, card, lambda: model.to_onnx(int8))


def is_exported(folder: Path) -> bool:
    """Whether a model runs in ONNX Runtime."""
    return (folder / SCORE_GRAPH).is_file()


def save_without_weights(model: Recognizer, folder: Path, card: str = "") -> None:
    """Write what does not change during training."""
    write_text(folder / CONFIG, model.settings.to_toml())
    save_info(model, folder)
    model.save_encoder(folder / ENCODER)
    write_text(folder / CARD, card or str(Card(model.settings, model.labels)))


def save_info(model: Recognizer, folder: Path) -> None:
    """Write or replace labels.json; the manifest is removed."""
    (folder / MANIFEST).unlink(missing_ok=True)
    values = {
        "format": FORMAT,
        "nestree": __version__,
        "labels": list(model.labels),
        "text": model.text_rules._asdict(),
        "temperatures": model.temperatures._asdict(),
    }
    write_text(folder / LABELS, json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def save_weights(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write or replace the weights; the manifest is removed."""
    (folder / MANIFEST).unlink(missing_ok=True)
    write_tensors(folder / WEIGHTS, weights, {"format": str(FORMAT), "nestree": __version__})


def to_bytes(model: Recognizer) -> dict[str, bytes]:
    """The files that `save` writes, by name."""
    with tempfile.TemporaryDirectory(prefix="nestree-") as temporary:
        folder = Path(temporary, "model")
        save(model, folder, model.card)
        return read_files(folder)


def from_bytes(files: Mapping[str, bytes], device: str | torch.device = "cpu") -> Recognizer:
    """The model of these files."""
    with tempfile.TemporaryDirectory(prefix="nestree-") as temporary:
        for name, content in files.items():
            path = Path(temporary, name)
            if not path.resolve().is_relative_to(Path(temporary).resolve()):
                raise ModelError(f"these bytes are not a nestree model: they name the file {name!r:.60}.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return load(temporary, device)


def quantize(folder: Path, out: Path) -> None:
    """Write a copy of a model to a new directory, its weights in 8 bits."""
    if is_exported(folder):
        raise ModelError(
            f"{folder} is exported to ONNX. Export the model that it was made of in 8 bits: nestree export --int8."
        )
    model = load(folder)
    if model.is_quantized:
        raise ModelError(f"{folder} is quantized already: its weights have 8 bits each. There is nothing to do.")
    with atomic_path(out) as temporary:
        for path in model_files(folder):
            if path.name != WEIGHTS:
                target = temporary / path.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        write_text(temporary / CONFIG, without_local_path(model.settings).to_toml())
        save_info(model, temporary)
        stored = "Stored in 8 bits each, with a scale for every 64 of them"
        add_to_card(temporary, WEIGHTS_NOTE.format(stored, "quantize"))
        save_weights(quantize_state(model.state_dict()), temporary)
        save_manifest(temporary)


def check_output_outside_model(out: Path, model: Path) -> None:
    """Raise if a model would be written into the folder of another."""
    if out.resolve().is_relative_to(model.resolve()):
        raise InputError(f"{out} is in the folder of the model, {model}. Give another name.")


def without_local_path(settings: Settings) -> Settings:
    """The settings without the path of the encoder on this machine: its name is left."""
    path = Path(settings.encoder.path)
    if not path.is_absolute():
        return settings
    return replace(settings, encoder=replace(settings.encoder, path=path.name))


def add_to_card(folder: Path, text: str) -> None:
    """Append a paragraph to the model card."""
    write_text(folder / CARD, f"{read_card(folder).rstrip()}\n\n{text}\n".lstrip())


def model_files(folder: Path) -> Iterator[Path]:
    """The files of a model, in a fixed order: without those of its training run, and without hidden ones."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and parts[0] != TRAINING and not any(part.startswith(".") for part in parts):
            yield path


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of a model, by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in model_files(folder)}


def save_manifest(folder: Path) -> None:
    """Write the manifest of a directory whose files are all final."""
    files = {}
    for path in model_files(folder):
        name = path.relative_to(folder)
        if name.parts[0] in IN_MANIFEST:
            files[name.as_posix()] = {"size": path.stat().st_size, "sha256": sha256(path)}
    values = {"format": MANIFEST_FORMAT, "files": files}
    write_text(folder / MANIFEST, json.dumps(values, indent=2) + "\n")


def check_manifest(folder: Path) -> None:
    """Raise if a file is not the one that the manifest describes; a directory may have no manifest."""
    path = folder / MANIFEST
    if not path.is_file():
        return
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
        files = {str(name): (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except DAMAGED:
        raise ModelError(f"{path} is not what nestree writes: it is damaged. Fetch the model again.") from None
    if version != MANIFEST_FORMAT:
        raise ModelError(
            f"{path} has the format {version!r:.20}; this nestree knows {MANIFEST_FORMAT}. Update nestree."
        )
    for name, (size, digest) in files.items():
        file = require(folder, name)
        if file.stat().st_size != size or sha256(file) != digest:
            raise ModelError(
                f"{file} is not the file that {MANIFEST} describes: it was damaged or edited. Fetch the model again "
                f"or, if you edited it, delete {path} or pass verify=False."
            )


def sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None


def load(folder: Path | str, device: str | torch.device = "cpu", *, verify: bool = True) -> Recognizer:
    """The model of a directory, ready to predict; not `verify`: without comparing its files with the manifest."""
    folder = Path(folder)
    log.debug("reading %s", folder)
    training = folder / TRAINING
    has_ended = (folder / MANIFEST).is_file() or (training / "scores.json").is_file()
    if training.is_dir() and (folder / WEIGHTS).is_file() and not has_ended:
        log.warning(
            "%s: training has not ended, so its probabilities are not calibrated. Continue: nestree train --resume %s",
            folder,
            shlex.quote(str(folder)),
        )
    with ThreadPoolExecutor(1) as pool:
        check = pool.submit(check_manifest, folder) if verify else None  # hashing releases the GIL
        try:
            info, settings = read_info(folder), read_settings(folder)
            model = (read_onnx if is_exported(folder) else read_torch)(folder, info, settings)
            model.text_rules, model.temperatures, model.card = info.text, info.temperatures, read_card(folder)
            return model.to(device).eval()
        finally:
            if check:
                check.result()  # its error names the damaged file, so it replaces any other


def read_torch(folder: Path, info: ModelInfo, settings: Settings) -> Recognizer:
    """A model that runs in PyTorch."""
    tensors = read_stored_tensors(folder)
    model = build_on_meta(folder, settings, info.labels, tensors)
    own = model.state_dict()
    check_shapes(own, tensors, folder / WEIGHTS)
    weights = dequantized(tensors, folder)
    if isinstance(model.encoder.transformer, bert.Bert):
        copies = {name: value.to(own[name].dtype, copy=value is tensors[name]) for name, value in weights.items()}
        model.load_state_dict(copies, assign=True)
    else:  # its buffers have values that are not stored
        model = build_uninitialized(folder, settings, info.labels)
        model.load_state_dict(weights)
    model.is_quantized = any(name.startswith(SCALES) for name in tensors)
    return model


def read_onnx(folder: Path, info: ModelInfo, settings: Settings) -> Recognizer:
    """A model that runs in ONNX Runtime."""
    require(folder, f"{ENCODER}/{bert.TOKENIZER}")
    names = [SCORE_GRAPH] if settings.model.labeling == "none" else [SCORE_GRAPH, LABEL_GRAPH]
    try:
        graphs = {name: require(folder, name).read_bytes() for name in names}
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror or error}.") from None
    return OnnxRecognizer(settings, info.labels, folder / ENCODER, OnnxNetwork(graphs, str(folder)))


def require(folder: Path, name: str) -> Path:
    """The path of a file or folder of the model."""
    if not (folder / name).exists():
        raise ModelError(f"{folder} has no {name}: it is incomplete. Fetch or train it again.")
    return folder / name


def read_card(folder: Path) -> str:
    """The model card; '': there is none."""
    path = folder / CARD
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def build_uninitialized(folder: Path, settings: Settings, labels: Sequence[str]) -> Recognizer:
    """A model of the shape that this directory describes; its weights are uninitialized."""
    for name in (ENCODER, f"{ENCODER}/{bert.CONFIG}", f"{ENCODER}/{bert.TOKENIZER}"):
        require(folder, name)
    return Recognizer(settings, labels, folder / ENCODER, pretrained=False)


def build_on_meta(folder: Path, settings: Settings, labels: Sequence[str], tensors: Mapping[str, Tensor]) -> Recognizer:
    """The same on the meta device, where tensors have shapes and no memory.

    Modules take memory even there, so a network of more layers than there are stored `tensors` is refused.
    """
    counts = {f"{CONFIG}: encoder.lstm_layers": settings.encoder.lstm_layers}
    with suppress(*DAMAGED):  # loading the encoder raises a better error
        config = json.loads((folder / ENCODER / bert.CONFIG).read_text(encoding="utf-8"))
        for name, value in config.items():
            if "layer" in name and type(value) is int:
                counts[f"{ENCODER}/{bert.CONFIG}: {name}"] = value
    for name, count in counts.items():
        if count > len(tensors):
            raise ModelError(
                f"{folder / name} is {count}, and {WEIGHTS} has {len(tensors)} tensors: they belong to different "
                "models."
            )
    try:
        with torch.device("meta"), NoInitialization():
            return build_uninitialized(folder, settings, labels)
    except NestreeError:
        raise
    except (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"{folder}: {CONFIG} and {ENCODER} describe a network that cannot be built: "
            f"{str(error).splitlines()[0]:.100}. Fetch the model again."
        ) from None


class NoInitialization(TorchFunctionMode):
    """Makes in-place functions do nothing: on the meta device some would import a compiler, which takes seconds."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function.__name__
        if name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def read_settings(folder: Path) -> Settings:
    return Settings.load(require(folder, CONFIG))


def read_labels(folder: Path) -> list[str]:
    return list(read_info(folder).labels)


def read_info(folder: Path) -> ModelInfo:
    """The content of labels.json; models of layout 1 have neither rules for texts nor temperatures."""
    if not folder.is_dir():
        what = "is a file, and a model is a directory" if folder.exists() else "does not exist"
        raise ModelError(f"{folder} {what}. Name a directory that `nestree train` made.")
    path = folder / LABELS
    if not path.is_file():
        raise ModelError(f"{folder} has no {LABELS}: it is not a nestree model. Name one that `nestree train` made.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version, labels = values["format"], values["labels"]
    except DAMAGED:
        raise ModelError(f"{path} is not what nestree writes: it is damaged, or of another program.") from None
    if not isinstance(version, int) or version > FORMAT:
        raise ModelError(
            f"{folder} was made by nestree {values.get('nestree', '?')} in layout {version}; this one knows layouts "
            f"up to {FORMAT}. Update nestree."
        )
    if not (isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)):
        raise ModelError(f"{path} must list labels, and says {labels!r:.60}. Fetch the model again.")
    for label in labels:
        if not label or any("\ud800" <= character <= "\udfff" for character in label):
            raise ModelError(
                f"{path}: the label {label!r:.60} is empty or has half of a surrogate pair. Fetch the model again."
            )
    text, stored = values.get("text", {}), values.get("temperatures", {})
    try:
        rules = TextRules(**text)
    except TypeError:
        raise ModelError(f"{path}: text is {text!r:.60}; it must say words and sentences.") from None
    if rules.words not in WORD_STYLES or rules.sentences not in SENTENCE_RULES:
        raise ModelError(f"{path}: this nestree cannot split text by {text!r:.60}. Update nestree.")
    with suppress(TypeError, ValueError, AttributeError, OverflowError):
        *divisors, offset = temperatures = Temperatures(**{key: float(stored[key]) for key in stored})
        in_range = all(1 / LARGEST_TEMPERATURE <= divisor <= LARGEST_TEMPERATURE for divisor in divisors)
        if in_range and abs(offset) <= LARGEST_TEMPERATURE:
            return ModelInfo(labels, rules, temperatures)
    raise ModelError(
        f"{path}: temperatures are {stored!r:.60}; they must be numbers above 0, and at most "
        f"{LARGEST_TEMPERATURE:,.0f}."
    )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a directory by name, in float32."""
    return dequantized(read_stored_tensors(folder), folder)


def dequantized(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    try:
        return dequantize_state(tensors)
    except ModelError as error:
        raise ModelError(f"{folder / WEIGHTS} is damaged: {error}. Fetch the model again.") from None


def read_stored_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of weights.safetensors as they are stored."""
    if not (folder / WEIGHTS).is_file() and (folder / TRAINING).is_dir():
        began = (folder / TRAINING / "state.safetensors").is_file()
        remedy = f"Continue with `nestree train --resume {shlex.quote(str(folder))}`" if began else "Start it again"
        raise ModelError(f"{folder} has no {WEIGHTS} yet: its training stopped before the first evaluation. {remedy}.")
    if is_exported(folder):
        raise ModelError(f"{folder} was exported to ONNX and has no {WEIGHTS}. Name the model that it was made of.")
    return read_tensors(require(folder, WEIGHTS))[0]


def check_shapes(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise unless the tensors of a file have the names and shapes of the model's own."""
    stored = {name: value for name, value in tensors.items() if not name.startswith(SCALES)}
    if missing := own.keys() - stored.keys():
        raise ModelError(f"{path} lacks {min(missing)}: it belongs to another config.toml. Fetch the model again.")
    if more := stored.keys() - own.keys():
        raise ModelError(
            f"{path} has {min(more)}, which config.toml has no place for: they belong to different models."
        )
    for name, value in own.items():
        if value.shape != stored[name].shape:
            raise ModelError(
                f"{path}: {name} has the shape {list(stored[name].shape)}, and config.toml and encoder/config.json "
                f"ask for {list(value.shape)}: they belong to different models."
            )


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically; equal tensors give equal bytes."""
    addresses: set[int] = set()
    stored = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        shared = value.data_ptr() in addresses  # which save_file refuses
        stored[name] = value.clone() if shared else value
        addresses.add(value.data_ptr())
    try:
        with atomic_path(path) as temporary:
            temporary.touch()
            mode = temporary.stat().st_mode  # save_file would let nobody else read it
            save_file(stored, temporary, metadata=dict(metadata))
            with open(temporary, "r+b") as file:  # the order of its metadata is random: sort it
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
                header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
                file.seek(8)
                file.write(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size))
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
    except (SafetensorError, DataError) as error:
        full = " The disk is full." if "No space" in str(error) or "os error 28" in str(error) else ""
        why = str(error).rstrip(".")
        raise ModelError(f"{path} could not be written: {why}.{full} What was there before is untouched.") from None


def read_tensors(path: Path, *, metadata_only: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, none with `metadata_only`, and its metadata.

    safetensors opens a file twice, for its header and for its tensors. If a running training replaces it in between,
    header and tensors belong to different files, and we read again.
    """

    def identity() -> tuple[int, int, int]:
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    while True:
        try:
            before = identity()
            try:
                with safe_open(path, framework="pt") as file:
                    names = [] if metadata_only else list(file.keys())
                    tensors = {name: file.get_tensor(name) for name in names}
                    metadata = dict(file.metadata() or {})
            except RuntimeError:  # the new file is shorter
                if identity() == before:
                    raise
                continue
            if identity() == before:
                return tensors, metadata
        except FileNotFoundError:
            raise ModelError(f"{path} does not exist.") from None
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{path} cannot be read: {error}. It may be cut off; fetch or make it again.") from None


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
