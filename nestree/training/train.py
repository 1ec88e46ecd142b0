"""`train`: everything is made and checked before the first epoch, and what was trained is evaluated at the end."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from nestree import checkpoint
from nestree.checkpoint import CARD, write_text
from nestree.config import Settings
from nestree.decoding import Temperatures
from nestree.errors import TrainingError
from nestree.evaluation import EntityError, Evaluation
from nestree.model import Recognizer, TextRules
from nestree.model_card import Card, counted
from nestree.pipeline import select_device
from nestree.report import as_json
from nestree.report.tables import described
from nestree.temperature import best_decoder, fit_temperatures
from nestree.text import detect_word_style
from nestree.training import state
from nestree.training.callbacks import Callbacks
from nestree.training.dataset import Corpus
from nestree.training.distill import Teachers
from nestree.training.loop import Run, evaluated, run_epochs, save, stop_on_interrupt
from nestree.training.optimizer import Average, make_optimizer
from nestree.training.run_dir import RunDir, TensorBoard, TrainingLog, total_bytes
from nestree.training.state import Progress
from nestree.training.step import GradientStep

HEAD_PRIOR_PREFIX = "head_prior."  # how the names of weights of `model.head_prior` begin
SAVE_EVERY = 120.0  # seconds between two states on the disk, at least


@dataclass(frozen=True)
class TrainResult:
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
    watcher: Callbacks | None = None,
    origin: Mapping[str, Any] | None = None,
    about: Mapping[str, str] | None = None,
    lessons: Teachers | None = None,
) -> TrainResult:
    """Train a model and leave the best epoch in `folder`; with `resume`, go on where a run in it was interrupted.

    `init`: a model of ours to start from. `origin` is kept for whoever resumes: see `origin_of`. `about`: what its
    card says that only people know, by the keys of `card.ABOUT`. `lessons`: of teachers, see `distill`.
    Under `torchrun` or `accelerate launch`, all processes call this alike.
    """
    if lessons is not None:
        lessons.check_student(settings)
    accelerator = accelerator_for(device)
    files = RunDir(folder)
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
            else resume_run(settings, corpus.labels, init)
        )
    model.text_rules = text_rules(corpus, origin)
    model.to(accelerator.device)
    average = Average(model, settings.training.average)
    moving = make_optimizer(model, model.encoder.transformer, settings.training)
    if accelerator.is_main_process:
        if resume:
            files.go_on(progress.epoch, progress.updates)
        else:
            files.start()
            files.check_space(*sizes(model, average))
            checkpoint.save_all_but_weights(model, folder)
    accelerator.wait_for_everyone()
    if resume and not progress.finished:
        state.restore_state(files.state, model, moving, average)
    watchers = logging_callbacks(accelerator, files, watcher, tensorboard, progress)
    updater = GradientStep(model, corpus.train, accelerator, settings, progress, watchers, lessons)
    with stop_on_interrupt() as stop:
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
        return finish(run, about or {})


def text_rules(corpus: Corpus, origin: Mapping[str, Any] | None) -> TextRules:
    """How texts are to be split for this model: as its data were, which says so or shows it."""
    asked = (origin or {}).get("options", {})
    return TextRules(
        asked.get("words") or detect_word_style(sentence.words for sentence in corpus.train),
        asked.get("sentences") or "rules",
    )


def accelerator_for(device: str) -> Accelerator:
    """Where to train; `auto` is the best device there is."""
    found = select_device(device)
    return Accelerator(cpu=found.type == "cpu", mixed_precision="bf16" if found.type == "cuda" else "no")


def origin_of(folder: Path) -> dict[str, Any]:
    """What `train` was told when the run in this folder began."""
    files = RunDir(folder)
    files.check_resumable()
    return state.load_progress(files.state).origin


def known_progress(files: RunDir, corpus: Corpus) -> Progress:
    """Where the run in this folder stands, if it is one of this data."""
    files.check_resumable()
    progress = state.load_progress(files.state)
    if progress.fingerprint != corpus.fingerprint:
        raise TrainingError(
            f"{files.path} was trained on other data than this: sentences, entities or their order differ. "
            "Resume with the same files, or train anew in another directory."
        )
    return progress


def resume_run(settings: Settings, labels: Sequence[str], init: Path) -> Recognizer:
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
        if given is None and name.startswith(HEAD_PRIOR_PREFIX):
            continue  # a model that was made without them: they are soon learned
        if given is None or not check_growth(value, given, more):
            raise TrainingError(
                f"the model in {init} has no {name} of the shape {list(value.shape)}: it was made with other settings. "
                f"Leave --config out, or use --config {init / checkpoint.CONFIG}."
            )


def check_growth(value: torch.Tensor, given: torch.Tensor, more: int) -> bool:
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


def logging_callbacks(
    accelerator: Accelerator, files: RunDir, watcher: Callbacks | None, tensorboard: bool, progress: Progress
) -> list[Callbacks]:
    """Who hears of this run; of several processes only the first tells."""
    if not accelerator.is_main_process:
        return []
    found: list[Callbacks] = [TrainingLog(files)]
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
    if run.settings.model.head_prior and (decoding.method == "spans" or not decoding.head_prior_weight):
        run.tell(
            f'model.head_prior will be trained but not used, because decoding.method is "{decoding.method}" and '
            f"decoding.head_prior_weight is {decoding.head_prior_weight:g}. To use it, set decoding.method to "
            '"viterbi" or "mbr" and decoding.head_prior_weight to 2.'
        )
    several = sum(
        len({(e.span, e.label) for e in s.entities}) - len({e.span for e in s.entities})
        for s in run.corpus.train
    )
    if several and run.settings.loss.label == "softmax" and run.settings.model.labeling != "none":
        run.tell(
            f"{several:,} training {'entity has' if several == 1 else 'entities have'} the words of another one with "
            'another label, and loss.label = "softmax" gives a span one label. To find all, set it to "ranking".'
        )
    save(run)


def calibrate(run: Run) -> None:
    """Fit the temperatures on dev and, with decoding.tune, choose the decoder; both are saved with the model."""
    model, folder = run.model, run.folder.path
    found = [fit_temperatures(model, run.corpus.dev) if run.leads else None]
    model.temperatures = Temperatures(*broadcast_object_list(found)[0])
    if run.leads:
        checkpoint.save_info(checkpoint.ModelInfo(model.labels, model.text_rules, model.temperatures), folder)
    if not run.settings.decoding.tune:
        return
    chosen = [best_decoder(model, run.corpus.dev) if run.leads else None]
    model.settings = run.settings = replace(run.settings, decoding=broadcast_object_list(chosen)[0])
    decoding = run.settings.decoding
    run.tell(
        f'chosen on dev: decoding.method = "{decoding.method}", decoding.threshold = {decoding.threshold:g}.'
    )
    if run.leads:
        checkpoint.write_text(folder / checkpoint.CONFIG, run.settings.as_toml())


def finish(run: Run, about: Mapping[str, str]) -> TrainResult:
    """The model on the disk, evaluated once more; and its card."""
    progress, folder = run.progress, run.folder.path
    done, best = progress.epoch - 1, progress.best_epoch
    if not progress.finished:
        return TrainResult(folder, done, best, progress.seconds, "interrupted", None, None)
    run.accelerator.wait_for_everyone()
    checkpoint.load_weights(run.model, checkpoint.read_weights(folder), folder / checkpoint.WEIGHTS)
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
    return TrainResult(folder, done, best, progress.seconds, progress.finished, evaluation, card)


MISTAKES = 5


def summary(result: TrainResult) -> str:
    """For people."""
    epochs = "1 epoch" if result.epochs == 1 else f"{result.epochs} epochs"
    lines = [f"{epochs} in {duration(result.seconds)}; {result.why}."]
    if result.evaluation is not None:
        score = result.evaluation.entities
        lines += [
            f"best epoch {result.best_epoch}: dev P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  "
            f"F1 {100 * score.f1:.2f} (calibrated)",
            f"model: {result.folder}",
        ]
        found = typical_errors(result.evaluation)
        if found:
            lines += ["", f"typical mistakes on dev, of {len(result.evaluation.mistakes):,}:"]
            lines += [f"  {times:>4} x {kind}, such as: {described(one)}" for kind, times, one in found]
        lines += ["", next_step(result, score.f1)]
    return "\n".join(lines)


def next_step(result: TrainResult, f1: float) -> str:
    """What to do with the model, or to get one."""
    if f1 == 0:
        return (
            "It has learned nothing yet. Give it more updates: more epochs (--set training.epochs=40), or smaller "
            "batches (--set training.batch_words=150)."
        )
    return f"Try it: nestree show TEXT.txt --model {result.folder}"


def keep_scores(result: TrainResult, test: Evaluation | None) -> None:
    """Write down how good the model is: for programs and, if it was tested, in its card."""
    values: dict[str, Any] = {"seconds_per_epoch": result.seconds / max(1, result.epochs)}
    for name, evaluation in (("dev", result.evaluation), ("test", test)):
        if evaluation is not None:
            values[name] = as_json(evaluation)
    if result.card is not None and test is not None:
        tested = replace(result.card, evaluations={**result.card.evaluations, "test": test})
        write_text(result.folder / CARD, str(tested))
    write_text(
        RunDir(result.folder).scores, json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    )


def typical_errors(evaluation: Evaluation) -> list[tuple[str, int, EntityError]]:
    """The most frequent kinds of mistakes by their labels: what, how often, and one from the middle of them."""
    counts = Counter(map(what, evaluation.mistakes))
    found = []
    for kind, times in counts.most_common(MISTAKES):
        alike = [mistake for mistake in evaluation.mistakes if what(mistake) == kind]
        found.append((kind, times, alike[len(alike) // 2]))
    return found


def what(mistake: EntityError) -> str:
    gold, predicted = mistake.gold, mistake.predicted
    if mistake.kind == "type" and gold and predicted:
        return f"{gold.label} taken for {predicted.label}"
    entity = gold or predicted
    assert entity is not None
    kinds = {"boundary": "wrong borders of", "missed": "missed", "spurious": "invented"}
    return f"{kinds[mistake.kind]} {entity.label}"


def duration(seconds: float) -> str:
    """
    >>> duration(59.6), duration(125), duration(7300)
    ('60 s', '2 min 5 s', '2 h 1 min')
    """
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
