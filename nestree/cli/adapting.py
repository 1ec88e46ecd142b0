"""The command that lets an encoder read texts: adapt."""

import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestree.cli.data import reading
from nestree.cli.learning import Device
from nestree.cli.options import Files, From, Read, Sentences, Words
from nestree.cli.predicting import counted, options_by_format, say_left_out
from nestree.cli.running import QUIET, Commands, Quiet, Verbose, say
from nestree.cli.watching import Passes

if TYPE_CHECKING:
    from nestree.sentence import Sentence


def adapt(
    files: Files,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new directory for the encoder.")],
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder", metavar="NAME", help="A folder or hub name. [default: the default recipe's]"
        ),
    ] = None,
    passes: Annotated[int, typer.Option("--passes", min=1, help="How often it reads all of them.")] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of everything random.")] = 1,
    device: Device = "auto",
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Let a pretrained encoder get used to texts, annotated or not: it learns to tell words that are hidden from it.

    Plain text is read (.txt, standard input, folders of texts), and any format that `nestree formats` lists. What it
    has become is an encoder as any other: `nestree train --set encoder.path=DIR` starts from it.
    """
    from nestree.config import Settings
    from nestree.data import formats
    from nestree.data.files import STDIO
    from nestree.pipeline.jobs import jobs as jobs_of
    from nestree.training.adapting import adapt as get_used

    jobs = jobs_of(files, source_format, STDIO, "jsonl")
    if jobs.left_out:
        say_left_out(jobs.left_out)
    how = options_by_format({job.format for job in jobs.jobs}, read, words, sentences)

    def texts() -> "Iterator[Sentence]":
        """All sentences, read when they are asked for: when all else is there."""
        number = size = 0
        with reading([job.source for job in jobs.jobs]):
            for job in jobs.jobs:
                for document in formats.read(job.source, job.format, **how.get(job.format, {})):
                    for sentence in document.sentences:
                        number, size = number + 1, size + len(sentence.words)
                        yield sentence
        read_them = f"{counted(size, 'word', 'words')} in {counted(number, 'sentence', 'sentences')}"
        say(f"{read_them}, to be read {'once' if passes == 1 else f'{passes} times'}.")

    name = Settings.read("default").encoder.path if encoder is None else encoder
    with Passes() if Commands.verbosity != QUIET else nullcontext() as watcher:
        get_used(name, texts(), out, passes, seed, device, tell=watcher)
    say(f"nestree train --set encoder.path={shlex.quote(str(out))} starts from it.")
