"""Models by name: a directory, the bundled model, or a name on the Hugging Face hub, which is downloaded.

Downloaded models are found again without a network. Only files that a nestree model consists of are downloaded; none
of them is code.
"""

from pathlib import Path

from nestree import checkpoint
from nestree.errors import ModelError, first_line
from nestree.model_card import HUB_NAME as HUB_NAME

BUNDLED_NAME = "gum-minilm"  # of the bundled model, unless there is a directory of this name
MODEL_FILES = [
    *(name for name in checkpoint.IN_MANIFEST if name != checkpoint.ENCODER),
    checkpoint.CARD,
    checkpoint.MANIFEST,
    *(f"{checkpoint.ENCODER}/*{ending}" for ending in (".json", ".txt", ".model")),
]


def resolve(name: str | Path | None, *, revision: str | None = None, token: str | None = None) -> Path:
    """The directory of a model: this one, the bundled model (None, too), or one of the hub, downloaded if necessary.

    `revision`: a branch, tag or commit of the hub. `token`: for private models.
    """
    if not isinstance(name, str | Path | None) or name == "":
        raise ModelError(f"a model is named by a folder, {BUNDLED_NAME} or OWNER/NAME on the hub, not by {name!r:.60}.")
    if name is None or is_bundled(name):
        return checkpoint.bundled_model()
    folder = Path(name).expanduser()
    if folder.exists():
        return folder
    if not HUB_NAME.fullmatch(str(name)):
        raise ModelError(
            f"{name} does not exist. Name a directory that `nestree train` made, {BUNDLED_NAME}, or OWNER/NAME on "
            "the hub."
        )
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(str(name), revision=revision, token=token, allow_patterns=MODEL_FILES)
    except Exception as error:  # any error of the network or the hub
        raise ModelError(
            f"{name} is not a folder here, and cannot be fetched from the hub: {first_line(error)}. Check the name "
            "and the network, or download it on a machine with network access and name its folder."
        ) from error
    if not Path(found, checkpoint.LABELS).is_file():
        raise ModelError(f"{name} on the hub is not a nestree model: it has no {checkpoint.LABELS}.")
    return Path(found)


def is_bundled(name: str | Path | None) -> bool:
    """Whether this names the bundled model."""
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
    """Upload the model of a directory to the hub as OWNER/NAME; returns the address of the commit.

    A model of this name is replaced; the hub keeps its history. `revision`: a branch that exists.
    """
    folder = Path(folder)
    checkpoint.check_manifest(folder)
    if not checkpoint.is_exported(folder):
        checkpoint.read_weights(folder)  # raises if the model is incomplete
    if not (folder / checkpoint.MANIFEST).is_file():
        checkpoint.save_manifest(folder)
    files = [path.relative_to(folder).as_posix() for path in checkpoint.model_files(folder)]
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        repository = api.create_repo(name, private=private, exist_ok=True).repo_id
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=files, revision=revision, commit_message=message
        )
    except Exception as error:  # any error of the network or the hub
        raise ModelError(
            f"{folder} could not be uploaded to the hub as {name}: {first_line(error)}. Log in with `hf auth login`, "
            "or give a token that may write."
        ) from error
    return str(commit.commit_url)
