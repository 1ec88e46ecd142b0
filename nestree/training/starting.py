"""`train`: everything is made and checked before the first epoch, and what was trained is evaluated at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from nestree import checkpoint
from nestree.card import Card, counted
from nestree.config import Settings
from nestree.decoding import Temperatures
from nestree.errors import TrainingError
from nestree.evaluation import Evaluation
from nestree.model import Recognizer, TextRules
from nestree.pipeline import best_device
from nestree.pipeline.calibration import best_decoder, fitted
from nestree.text.styles import style_of
from nestree.training import state
from nestree.training.corpus import Corpus
from nestree.training.distill import Lessons
from nestree.training.folder import Folder, total_bytes
from nestree.training.journal import Journal, TensorBoard
from nestree.training.loop import Run, evaluated, run_epochs, save
from nestree.training.optimiser import Average, optimiser
from nestree.training.state import Progress
from nestree.training.stopping import stopping
from nestree.training.update import Updater
from nestree.training.watching import Watcher

OF_FORMS = "forms."  # how the names of weights of `model.forms` begin
SAVE_EVERY = 120.0  # seconds between two states on the disk, at least


@dataclass(frozen=True)
class Result:
    """How training ended."""

    folder: Path
    epochs: int  # that were done
    best_epoch: int
    seconds: float  # spent on training
    why: str  # it ended
    evaluation: Evaluation | None  # of the best epoch, on dev; None: somebody asked to stop
    card: Card | None  # what is said about the model; None: likewise


def train(
    settings: Settings,
    corpus: Corpus,
    folder: Path,
    *,
    resume: bool = False,
    init: Path | None = None,
    device: str = "auto",
    tensorboard: bool = False,
    save_every: float = SAVE_EVERY,
    watcher: Watcher | None = None,
    origin: Mapping[str, Any] | None = None,
    about: Mapping[str, str] | None = None,
    lessons: Lessons | None = None,
) -> Result:
    """Train a model and leave the best epoch in `folder`; with `resume`, go on where a run in it was interrupted.

    `init`: a model of ours to start from. `origin` is kept for whoever resumes: see `origin_of`. `about`: what its
    card says that only people know, by the keys of `card.ABOUT`. `lessons`: of teachers, see `distill`.
    Under `torchrun` or `accelerate launch`, all processes call this alike.
    """
    if lessons is not None:
        lessons.check_student(settings)
    accelerator = accelerator_for(device)
    files = Folder(folder)
    if resume:
        progress = known_progress(files, corpus)
        model = checkpoint.untrained(folder, settings, checkpoint.read_labels(folder))
    else:
        if accelerator.is_main_process:
            files.check_new()  # before the encoder is fetched, which may take long
        progress = Progress(corpus.fingerprint, dict(origin or {}))
        torch.manual_seed(settings.training.seed)
        model = (
            Recognizer(settings, corpus.labels, settings.encoder.path)
            if init is None
            else continued(settings, corpus.labels, init)
        )
    model.text_rules = text_rules(corpus, origin)
    model.to(accelerator.device)
    average = Average(model, settings.training.average)
    moving = optimiser(model, model.encoder.transformer, settings.training)
    if accelerator.is_main_process:
        if resume:
            files.go_on(progress.epoch, progress.updates)
        else:
            files.start()
            files.check_space(*sizes(model, average))
            checkpoint.save_all_but_weights(model, folder)
    accelerator.wait_for_everyone()
    if resume and not progress.finished:
        state.restore(files.state, model, moving, average)
    watchers = watching(accelerator, files, watcher, tensorboard, progress)
    updater = Updater(model, corpus.train, accelerator, settings, progress, watchers, lessons)
    with stopping() as stop:
        run = Run(
            settings,
            corpus,
            files,
            accelerator,
            model,
            moving,
            average,
            updater,
            progress,
            watchers,
            stop,
            save_every,
        )
        begin(run, resume)
        try:
            run_epochs(run)
        finally:
            updater.recorder = None  # it holds memory, which a traceback would keep
        return ended(run, about or {})


def text_rules(corpus: Corpus, origin: Mapping[str, Any] | None) -> TextRules:
    """How texts are to be split for this model: as its data were, which says so or shows it."""
    asked = (origin or {}).get("options", {})
    return TextRules(
        asked.get("words") or style_of(sentence.words for sentence in corpus.train),
        asked.get("sentences") or "rules",
    )


def accelerator_for(device: str) -> Accelerator:
    """Where to train; `auto` is the best device there is."""
    found = best_device(device)
    return Accelerator(cpu=found.type == "cpu", mixed_precision="bf16" if found.type == "cuda" else "no")


def origin_of(folder: Path) -> dict[str, Any]:
    """What `train` was told when the run in this folder began."""
    files = Folder(folder)
    files.check_resumable()
    return state.load_progress(files.state).origin


def known_progress(files: Folder, corpus: Corpus) -> Progress:
    """Where the run in this folder stands, if it is one of this data."""
    files.check_resumable()
    progress = state.load_progress(files.state)
    if progress.fingerprint != corpus.fingerprint:
        raise TrainingError(
            f"{files.path} was trained on other data than this: sentences, entities or their order differ. "
            "Resume with the same files, or train anew in another directory."
        )
    return progress


def continued(settings: Settings, labels: Sequence[str], init: Path) -> Recognizer:
    """A model that begins with the weights of another; labels that are new to it come after those it knows."""
    checkpoint.check_manifest(init)
    known = checkpoint.read_labels(init)
    everything = [*known, *(label for label in labels if label not in known)]
    weights = checkpoint.read_weights(init)
    grow(checkpoint.outline(init, settings, everything, weights), weights, len(everything) - len(known), init)
    model = checkpoint.untrained(init, settings, everything)
    grow(model, weights, len(everything) - len(known), init)
    return model


def grow(model: Recognizer, weights: Mapping[str, torch.Tensor], more: int, init: Path) -> None:
    """Copy the weights of the model in `init` into one that has so many labels more."""
    for name, value in model.state_dict().items():
        given = weights.get(name)
        if given is None and name.startswith(OF_FORMS):
            continue  # a model that was made without them: they are soon learned
        if given is None or not grown(value, given, more):
            raise TrainingError(
                f"the model in {init} has no {name} of the shape {list(value.shape)}: it was made with other settings. "
                f"Leave --config out, or use --config {init / checkpoint.CONFIG}."
            )


def grown(value: torch.Tensor, given: torch.Tensor, more: int) -> bool:
    """Copy weights into a tensor that has so many labels more; False: they do not fit."""
    if value.ndim != given.ndim:
        return False
    longer = [axis for axis in range(value.ndim) if value.shape[axis] != given.shape[axis]]
    if any(value.shape[axis] != given.shape[axis] + more for axis in longer) or len(longer) > 1:
        return False
    part = value.narrow(longer[0], 0, given.shape[longer[0]]) if longer else value
    part.copy_(given)
    return True


def sizes(model: Recognizer, average: Average) -> tuple[int, int]:
    """Bytes of the weights, and of a state of training: weights, two moments, the average."""
    weights = total_bytes(model.state_dict())
    return weights, 3 * weights + total_bytes(average.weights)


def watching(
    accelerator: Accelerator, files: Folder, watcher: Watcher | None, tensorboard: bool, progress: Progress
) -> list[Watcher]:
    """Who hears of this run; of several processes only the first tells."""
    if not accelerator.is_main_process:
        return []
    found: list[Watcher] = [Journal(files)]
    if watcher:
        found.append(watcher)
    if tensorboard:
        found.append(TensorBoard(files.tensorboard, progress.epoch - 1))
    return found


def begin(run: Run, resume: bool) -> None:
    """The first line of the log, and the first state: a run can be resumed from here on."""
    if resume:
        return
    processes = run.accelerator.num_processes
    if run.leads:
        sizes = {"train": len(run.corpus.train), "dev": len(run.corpus.dev)}
        run.folder.note("start", updates=0, processes=processes, **sizes)
    if processes > 1:
        run.tell(f"{processes} processes share each update.")
    for note in run.corpus.notes:
        run.tell(note)
    if run.settings.encoder.context and not any(any(s.context or ()) for s in run.corpus.train):
        run.tell(
            f"encoder.context is {run.settings.encoder.context}, but no sentence has any: give documents of several "
            "sentences (in JSON lines, with a doc_id), and `context` to `corpus`."
        )
    decoding = run.settings.decoding
    if run.settings.model.forms and (decoding.by == "spans" or not decoding.forms):
        run.tell(
            f'model.forms will be learned and not asked, as decoding.by is "{decoding.by}" and decoding.forms is '
            f'{decoding.forms:g}. For heads by forms, set decoding.by = "tree" or "marginals" and decoding.forms = 2.'
        )
    several = sum(
        len({(e.span, e.label) for e in s.entities}) - len({e.span for e in s.entities})
        for s in run.corpus.train
    )
    if several and run.settings.loss.label == "softmax" and run.settings.model.labelling != "none":
        run.tell(
            f"{several:,} training {'entity has' if several == 1 else 'entities have'} the words of another one with "
            'another label, and loss.label = "softmax" gives a span one label. To find all, set it to "ranking".'
        )
    save(run)


def calibrate(run: Run) -> None:
    """Fit the temperatures on dev and, with decoding.tune, choose the decoder; both are saved with the model."""
    model, folder = run.model, run.folder.path
    found = [fitted(model, run.corpus.dev) if run.leads else None]
    model.temperatures = Temperatures(*broadcast_object_list(found)[0])
    if run.leads:
        checkpoint.save_facts(checkpoint.Facts(model.labels, model.text_rules, model.temperatures), folder)
    if not run.settings.decoding.tune:
        return
    chosen = [best_decoder(model, run.corpus.dev) if run.leads else None]
    model.settings = run.settings = replace(run.settings, decoding=broadcast_object_list(chosen)[0])
    decoding = run.settings.decoding
    run.tell(f'chosen on dev: decoding.by = "{decoding.by}", decoding.threshold = {decoding.threshold:g}.')
    if run.leads:
        checkpoint.write_text(folder / checkpoint.CONFIG, run.settings.as_toml())


def ended(run: Run, about: Mapping[str, str]) -> Result:
    """The model on the disk, evaluated once more; and its card."""
    progress, folder = run.progress, run.folder.path
    done, best = progress.epoch - 1, progress.best_epoch
    if not progress.finished:
        return Result(folder, done, best, progress.seconds, "interrupted", None, None)
    run.accelerator.wait_for_everyone()
    checkpoint.fit(run.model, checkpoint.read_weights(folder), folder / checkpoint.WEIGHTS)
    calibrate(run)
    evaluation = evaluated(run, scored=True)
    card = Card(
        run.settings,
        run.model.labels,
        about,
        {"train": counted(run.corpus.train), "dev": counted(run.corpus.dev)},
        {"dev": evaluation},
        f"This is epoch {best} of {done}, the best on dev; training took {progress.seconds:,.0f} seconds.",
    )
    if run.leads:
        checkpoint.save_manifest(folder)
        checkpoint.write_text(folder / checkpoint.CARD, str(card))
    return Result(folder, done, best, progress.seconds, progress.finished, evaluation, card)
