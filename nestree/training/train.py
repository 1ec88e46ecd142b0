"""`train`: prepare and check a run, run its epochs, calibrate and evaluate the best one."""

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
from nestree.config import Settings
from nestree.decoding import Temperatures
from nestree.errors import TrainingError
from nestree.evaluation import EntityError, Evaluation
from nestree.model import Recognizer, TextRules
from nestree.model_card import Card, count_statistics
from nestree.nn.devices import select_device
from nestree.report import to_json
from nestree.report.tables import describe_error
from nestree.temperature import fit_temperatures
from nestree.text import detect_word_style
from nestree.training.callbacks import Callbacks
from nestree.training.dataset import Corpus
from nestree.training.distill import Teachers
from nestree.training.loop import Run, evaluate_on_dev, run_epochs, save, stop_on_interrupt, tune_decoding
from nestree.training.optimizer import make_optimizer
from nestree.training.run_dir import Progress, RunDir, TensorBoard, TrainingLog
from nestree.training.step import GradientStep

HEAD_PRIOR_PREFIX = "head_prior."  # of the names of the weights of `model.head_prior`
SAVE_EVERY = 120.0  # seconds between two states on disk, at least
SHOWN_ERRORS = 5  # kinds of errors in the summary


@dataclass(frozen=True)
class TrainResult:
    folder: Path
    epochs: int  # that were done
    best_epoch: int
    seconds: float  # spent on training
    why: str  # training ended
    evaluation: Evaluation | None  # of the best epoch on dev; None: training was interrupted
    card: Card | None  # None: training was interrupted


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
    callbacks: Callbacks | None = None,
    origin: Mapping[str, Any] | None = None,
    about: Mapping[str, str] | None = None,
    teachers: Teachers | None = None,
) -> TrainResult:
    """Train a model and leave the best epoch in `folder`; with `resume`, continue an interrupted run there.

    `init`: the directory of a model to start from. `origin` is saved for whoever resumes: see `origin_of`. `about`:
    entries of the model card (see model_card.about). `lessons`: teachers to distil from, see `distill`.
    Under `torchrun` or `accelerate launch`, all processes call this alike.
    """
    if teachers is not None:
        teachers.check_student(settings)
    accelerator = make_accelerator(device)
    files = RunDir(folder)
    if resume:
        progress = files.load_progress()
        if progress.fingerprint != corpus.fingerprint:
            raise TrainingError(
                f"{folder} was trained on other data than this: sentences, entities or their order differ. "
                "Resume with the same files, or train anew in another directory."
            )
        model = checkpoint.build_uninitialized(folder, settings, checkpoint.read_labels(folder))
    else:
        if accelerator.is_main_process:
            files.check_new()  # before the encoder is fetched, which may take long
        progress = Progress(corpus.fingerprint, dict(origin or {}))
        torch.manual_seed(settings.training.seed)
        model = (
            Recognizer(settings, corpus.labels, settings.encoder.path)
            if init is None
            else init_from_model(settings, corpus.labels, init)
        )
    options = (origin or {}).get("options", {})
    model.text_rules = TextRules(
        options.get("words") or detect_word_style(sentence.words for sentence in corpus.train),
        options.get("sentences") or "rules",
    )
    model.to(accelerator.device)
    optimizer = make_optimizer(model, model.encoder.transformer, settings.training)
    all_callbacks: list[Callbacks] = []
    if accelerator.is_main_process:
        if resume:
            files.reopen(progress.epoch, progress.updates)
        else:
            files.create()
            size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
            files.check_space(size, 3 * size)  # a state holds the weights and two moments
            checkpoint.save_without_weights(model, folder)
        all_callbacks = [TrainingLog(files), *([callbacks] if callbacks else [])]
        if tensorboard:
            all_callbacks.append(TensorBoard(files.tensorboard, progress.epoch - 1))
    accelerator.wait_for_everyone()
    if resume and not progress.finished:
        files.restore_state(model, optimizer)
    updater = GradientStep(model, corpus.train, accelerator, settings, progress, all_callbacks, teachers)
    with stop_on_interrupt() as stop:
        run = Run(
            settings,
            corpus,
            files,
            accelerator,
            model,
            optimizer,
            updater,
            progress,
            all_callbacks,
            stop,
            save_every,
        )
        if not resume:
            start_run(run)
        try:
            run_epochs(run)
        finally:
            updater.graphs = None  # a traceback would keep its memory
        return finish_run(run, about or {})


def make_accelerator(device: str) -> Accelerator:
    """Mixed precision in bf16 on a GPU, float32 elsewhere; `auto` is the best device available."""
    kind = select_device(device).type
    return Accelerator(cpu=kind == "cpu", mixed_precision="bf16" if kind == "cuda" else "no")


def origin_of(folder: Path) -> dict[str, Any]:
    """The `origin` that `train` got when the run in this directory began."""
    return RunDir(folder).load_progress().origin


def init_from_model(settings: Settings, labels: Sequence[str], init: Path) -> Recognizer:
    """A model with the weights of another one; new labels come after those that it knows."""
    checkpoint.check_manifest(init)
    old_labels = checkpoint.read_labels(init)
    all_labels = [*old_labels, *(label for label in labels if label not in old_labels)]
    added = len(all_labels) - len(old_labels)
    weights = checkpoint.read_weights(init)
    # First on the meta device: a mismatch is found before the encoder is read.
    copy_weights(weights, checkpoint.build_on_meta(init, settings, all_labels, weights), added, init)
    model = checkpoint.build_uninitialized(init, settings, all_labels)
    copy_weights(weights, model, added, init)
    return model


def copy_weights(weights: Mapping[str, torch.Tensor], model: Recognizer, added: int, init: Path) -> None:
    """Copy the weights of the model in `init` into one that has `added` more labels."""
    for name, target in model.state_dict().items():
        source = weights.get(name)
        if source is None and name.startswith(HEAD_PRIOR_PREFIX):
            continue  # the other model has no head prior; it is learned quickly
        if source is not None and target.ndim == source.ndim:
            longer = [axis for axis in range(target.ndim) if target.shape[axis] != source.shape[axis]]
            if not longer:
                target.copy_(source)
                continue
            if len(longer) == 1 and target.shape[longer[0]] == source.shape[longer[0]] + added:
                target.narrow(longer[0], 0, source.shape[longer[0]]).copy_(source)
                continue
        raise TrainingError(
            f"the model in {init} has no {name} of the shape {list(target.shape)}: it was made with other settings. "
            f"Leave --config out, or use --config {init / checkpoint.CONFIG}."
        )


def start_run(run: Run) -> None:
    """Write the first line of the log, notes for the user, and the first state: the run can be resumed now."""
    settings, processes = run.settings, run.accelerator.num_processes
    if run.is_main:
        sizes = {"train": len(run.corpus.train), "dev": len(run.corpus.dev)}
        run.folder.log_event("start", updates=0, processes=processes, **sizes)
    if processes > 1:
        run.notify(f"{processes} processes share each update.")
    for note in run.corpus.notes:
        run.notify(note)
    if settings.encoder.context and not any(any(s.context or ()) for s in run.corpus.train):
        run.notify(
            f"encoder.context is {settings.encoder.context}, but no sentence has any: give documents of several "
            "sentences (in JSON lines, with a doc_id), and `context` to `corpus`."
        )
    decoding = settings.decoding
    if settings.model.head_prior and (decoding.method == "spans" or not decoding.head_prior_weight):
        run.notify(
            f'model.head_prior will be trained but not used, because decoding.method is "{decoding.method}" and '
            f"decoding.head_prior_weight is {decoding.head_prior_weight:g}. To use it, set decoding.method to "
            '"viterbi" or "mbr" and decoding.head_prior_weight to 2.'
        )
    several = sum(
        len({(e.span, e.label) for e in s.entities}) - len({e.span for e in s.entities})
        for s in run.corpus.train
    )
    if several and settings.loss.label == "softmax" and settings.model.labeling != "none":
        run.notify(
            f"{several:,} training {'entity has' if several == 1 else 'entities have'} the words of another one with "
            'another label, and loss.label = "softmax" gives a span one label. To find all, set it to "ranking".'
        )
    save(run)


def calibrate(run: Run) -> None:
    """Fit the temperatures on dev and, with decoding.tune, choose the decoder; both are saved with the model."""
    model, folder = run.model, run.folder.path
    fitted = [fit_temperatures(model, run.corpus.dev) if run.is_main else None]
    model.temperatures = Temperatures(*broadcast_object_list(fitted)[0])
    if run.is_main:
        checkpoint.save_info(checkpoint.ModelInfo(model.labels, model.text_rules, model.temperatures), folder)
    if not run.settings.decoding.tune:
        return
    model.settings = run.settings = tune_decoding(run)
    decoding = run.settings.decoding
    run.notify(
        f'chosen on dev: decoding.method = "{decoding.method}", decoding.threshold = {decoding.threshold:g}.'
    )
    if run.is_main:
        checkpoint.write_text(folder / checkpoint.CONFIG, run.settings.to_toml())


def finish_run(run: Run, about: Mapping[str, str]) -> TrainResult:
    """Calibrate and evaluate the best epoch, and write its model card."""
    progress, folder = run.progress, run.folder.path
    done, best = progress.epoch - 1, progress.best_epoch
    if not progress.finished:
        return TrainResult(folder, done, best, progress.seconds, "interrupted", None, None)
    run.accelerator.wait_for_everyone()
    checkpoint.load_weights(run.model, checkpoint.read_weights(folder), folder / checkpoint.WEIGHTS)
    calibrate(run)
    evaluation = evaluate_on_dev(run, scored=True)
    card = Card(
        run.settings,
        run.model.labels,
        about,
        {"train": count_statistics(run.corpus.train), "dev": count_statistics(run.corpus.dev)},
        {"dev": evaluation},
        f"This is epoch {best} of {done}, the best on dev; training took {progress.seconds:,.0f} seconds.",
    )
    if run.is_main:
        checkpoint.save_manifest(folder)
        checkpoint.write_text(folder / checkpoint.CARD, str(card))
    return TrainResult(folder, done, best, progress.seconds, progress.finished, evaluation, card)


def summary(result: TrainResult, test: Evaluation | None = None) -> str:
    """The result as a text for the terminal, with the scores on the test data if there are any."""
    epochs = "1 epoch" if result.epochs == 1 else f"{result.epochs} epochs"
    lines = [f"{epochs} in {duration(result.seconds)}; {result.why}."]
    if result.evaluation is None:
        return lines[0]
    score, errors = result.evaluation.entities, result.evaluation.errors
    lines += [
        f"best epoch {result.best_epoch}: dev P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  "
        f"F1 {100 * score.f1:.2f} (calibrated)",
        f"model: {result.folder}",
    ]
    if test is not None:
        of_test = test.entities
        lines.insert(
            -1,
            f"test: P {100 * of_test.precision:.2f}  R {100 * of_test.recall:.2f}  F1 {100 * of_test.f1:.2f}",
        )
    if errors:
        lines += ["", f"typical mistakes on dev, of {len(errors):,}:"]
    for kind, count in Counter(map(error_kind, errors)).most_common(SHOWN_ERRORS):
        same = [error for error in errors if error_kind(error) == kind]
        lines.append(f"  {count:>4} x {kind}, such as: {describe_error(same[len(same) // 2])}")
    advice = (
        f"Try it: nestree show TEXT.txt --model {result.folder}"
        if score.f1
        else "It has learned nothing yet. Give it more updates: more epochs (--epochs 40), or smaller batches "
        "(--batch-words 150)."
    )
    return "\n".join([*lines, "", advice])


def error_kind(error: EntityError) -> str:
    gold, predicted = error.gold, error.predicted
    if error.kind == "type" and gold and predicted:
        return f"{gold.label} taken for {predicted.label}"
    entity = gold or predicted
    assert entity is not None
    kinds = {"boundary": "wrong borders of", "missed": "missed", "spurious": "invented"}
    return f"{kinds[error.kind]} {entity.label}"


def save_scores(result: TrainResult, test: Evaluation | None) -> None:
    """Write the scores of the model as JSON and, if it was tested, into its card."""
    values: dict[str, Any] = {"seconds_per_epoch": result.seconds / max(1, result.epochs)}
    for name, evaluation in (("dev", result.evaluation), ("test", test)):
        if evaluation is not None:
            values[name] = to_json(evaluation)
    if result.card is not None and test is not None:
        card = replace(result.card, evaluations={**result.card.evaluations, "test": test})
        checkpoint.write_text(result.folder / checkpoint.CARD, str(card))
    checkpoint.write_text(
        RunDir(result.folder).scores, json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    )


def duration(seconds: float) -> str:
    """
    >>> duration(59.6), duration(125), duration(7300)
    ('60 s', '2 min 5 s', '2 h 1 min')
    """
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
