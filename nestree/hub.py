"""Models by name: a folder, box, or a name on the Hugging Face hub, which becomes a folder on this machine.

What was fetched once is found again without a network. Only files that a nestree model consists of are fetched, and
none of them is code.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from nestree import checkpoint
from nestree.errors import ModelError
from nestree.model import Recognizer
from nestree.nn.devices import select_device

BUNDLED_NAME = "gum-minilm"  # the model that came with nestree, unless there is a folder of this name
NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
FILES = [  # what a model consists of; neither code nor pickles
    checkpoint.CONFIG,
    checkpoint.LABELS,
    checkpoint.WEIGHTS,
    checkpoint.CARD,
    checkpoint.MANIFEST,
    *(f"{checkpoint.ENCODER}/*{ending}" for ending in (".json", ".txt", ".model")),
]


def resolve(name: str | Path | None, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model: this one, the box (None, too), or a model of the hub, fetched if it must be.

    `revision`: a branch, tag or commit of the hub. `token`: for models that are not for everybody.
    """
    if not isinstance(name, str | Path | None):
        raise ModelError(
            f"a model is named by a folder, {BUNDLED_NAME} or OWNER/NAME on the hub, not by {name!r:.60}."
        )
    if is_bundled(name):
        return checkpoint.bundled_model()
    assert name is not None
    folder = Path(name).expanduser()
    if folder.exists():
        return folder
    if not NAME.fullmatch(str(name)):
        raise ModelError(
            f"{name} does not exist. Name a directory that `nestree train` made, {BUNDLED_NAME}, or OWNER/NAME on "
            "the hub."
        )
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(str(name), revision=revision, token=token, allow_patterns=FILES)
    except Exception as why:  # whatever there may be between here and the hub
        raise ModelError(
            f"{name} is no folder here, and cannot be fetched from the hub: {first_line(why)} Check the name and the "
            "network, or fetch it where there is one and name the folder."
        ) from why
    if not (Path(found) / checkpoint.LABELS).is_file():
        raise ModelError(f"{name} on the hub is no model of nestree: it has no {checkpoint.LABELS}.")
    return Path(found)


def is_bundled(name: str | Path | None) -> bool:
    return name is None or (str(name) == BUNDLED_NAME and not Path(name).exists())


def push(
    folder: str | Path,
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    revision: str | None = None,
    message: str = "A nestree model",
) -> str:
    """Put the model of a folder on the hub as OWNER/NAME; the address of what is there then.

    What stands there is replaced, and its history is kept. `revision`: a branch that exists.
    """
    folder = Path(folder)
    checkpoint.check_manifest(folder)
    checkpoint.read_weights(folder)  # half a model is of use to nobody
    if not (folder / checkpoint.MANIFEST).is_file():
        checkpoint.save_manifest(folder)
    files = [path.relative_to(folder).as_posix() for path in checkpoint.files_of(folder)]
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        there = api.create_repo(name, private=private, exist_ok=True).repo_id
        done = api.upload_folder(
            repo_id=there,
            folder_path=folder,
            allow_patterns=files,
            revision=revision,
            commit_message=message,
        )
    except Exception as why:  # as above
        raise ModelError(
            f"{folder} could not be put on the hub as {name}: {first_line(why)} Log in with `hf auth login`, or give a "
            "token that may write."
        ) from why
    return str(done.commit_url)


def first_line(why: Exception) -> str:
    """The first sentence of what the hub's library says, which is often a page."""
    lines = [line.strip() for line in str(why).splitlines() if line.strip()]
    said = lines[0] if lines else type(why).__name__
    return f"{said[:200].rstrip('.')}."


# What Recognizer has as methods


def from_pretrained(
    name: str | Path, *, device: str = "cpu", verify: bool = True, **where: Any
) -> Recognizer:
    """The model of a folder or of the hub; `where`: revision and token, as in `find`."""
    return checkpoint.load(resolve(name, **where), select_device(device), verify=verify)


def save_pretrained(model: Recognizer, folder: str | Path) -> None:
    """A new directory with the whole model, or nothing."""
    checkpoint.save(model, Path(folder), model.card)


def push_to_hub(model: Recognizer, name: str, **how: Any) -> str:
    """Put a model on the hub; `how`: private, token, revision and message, as in `push`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save_pretrained(model, folder)
        return push(folder, name, **how)
