"""The commands serve and label-config."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from nestree.cli.predict import model_name
from nestree.cli.runtime import print_line
from nestree.errors import InputError
from nestree.serve.options import LOCAL_HOSTS, Limits, ServeOptions

KEY_VARIABLE = "NESTREE_API_KEY"


def serve(
    limits: Limits,
    model: str | None = None,
    host: Annotated[
        str, Option(metavar="ADDRESS", help="Where to listen; any other address needs an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0: any free port.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        Option(metavar="FILE", help=f"A file with the API key; or set {KEY_VARIABLE}."),
    ] = None,
    insecure: Annotated[bool, Option("--insecure", help="Serve other hosts without an API key.")] = False,
    allowed_host: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="A name that clients call this server by; may be repeated; *: any."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        Option(metavar="ORIGIN", help="A web site whose pages may call the API; may be repeated."),
    ] = None,
    device: str = "auto",
    precision: Annotated[Literal["auto", "float32", "int8"], Option(help="Precision of the model on a CPU.")] = "auto",
    max_sentence_words: int = 200,
    batch_words: int | None = None,
) -> None:
    """Serve a model over HTTP: a page to play with, a JSON API, and backends for Label Studio and doccano.

    SIGTERM ends the server when all accepted requests are answered, with exit code 0.
    """
    key = read_key(api_key_file)
    is_local = host in ("localhost", "127.0.0.1", "::1")
    if not is_local and key is None and not insecure:
        raise InputError(
            f"--host {host} opens the server to others; set {KEY_VARIABLE}, or name --api-key-file, or allow it with "
            "--insecure."
        )
    from nestree import hub
    from nestree.nn.devices import select_device
    from nestree.pipeline import load
    from nestree.serve import run

    folder = hub.resolve(model)
    select_device(device)  # raises before the server says that it serves
    hosts: tuple[str, ...] = (*LOCAL_HOSTS, f"[{host}]" if ":" in host else host)
    if allowed_host:
        hosts = (*LOCAL_HOSTS, *(name.lower() for name in allowed_host))
    elif host in ("0.0.0.0", "::"):
        hosts = ("*",)
    options = ServeOptions(
        **vars(limits),
        model_name=model_name(model),
        batch_words=batch_words,
        api_key=key,
        allowed_hosts=hosts,
        cors_origins=tuple(origin.rstrip("/") for origin in cors_origin or ()),
    )
    run(
        lambda: load(folder, device, max_sentence_words, precision),
        options,
        host,
        port,
        lambda address: print_line(f"Serving {options.model_name} at {address}; Ctrl-C ends it."),
    )


def read_key(path: Path | None) -> str | None:
    """The API key of the file or of the environment; None if there is neither."""
    place, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE)
    if path is not None:
        place, key = str(path), path.read_bytes().decode("utf-8", "surrogateescape")
    if key is None:
        return None
    if not key.strip() or not key.strip().isprintable():
        raise InputError(f"the API key in {place} is empty or not printable; write one line.")
    return key.strip()


def label_config(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, gum-minilm, or OWNER/NAME on the hub.")],
) -> None:
    """Print the labeling config of Label Studio for the labels of a model."""
    from nestree import checkpoint, hub
    from nestree.data.formats.tasks import label_config

    typer.echo(label_config(checkpoint.read_labels(hub.resolve(model))))
