"""`train`: from annotated data to a model. `fit`: prepare and check a run, run its epochs, evaluate the best one."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list

from nestree import checkpoint, hub
from nestree.config import OTHER_NAMES, Settings, find_setting, from_values
from nestree.data import formats
from nestree.decoding import Temperatures
from nestree.errors import InputError, TrainingError, format_duration
from nestree.evaluation import Evaluation, warn_disjoint_labels
from nestree.model import Recognizer, TextRules
from nestree.model_card import Card, count_statistics
from nestree.nn.devices import select_device
from nestree.report import to_json
from nestree.report.tables import ERROR_NAMES, describe_error
from nestree.temperature import fit_temperatures
from nestree.text import detect_word_style
from nestree.training.callbacks import Callbacks, ProgressBar, TensorBoard
from nestree.training.dataset import (
    Corpus,
    adapt_to_small_data,
    count_mentions,
    id_or_words,
    load_init_settings,
    make_corpus,
    part_files,
)
from nestree.training.distill import Teachers
from nestree.training.loop import Run, evaluate_distributed, run_epochs, save, stop_on_interrupt, tune_decoding
from nestree.training.optimizer import make_optimizer
from nestree.training.run_dir import Progress, RunDir
from nestree.training.step import GradientStep
from nestree.types import Document, Sentence

SAVE_EVERY = 120.0  # seconds between two states on disk, at least
SHOWN_ERRORS = 5  # kinds of errors in the summary
NOTED_CHANGE = 0.5  # of dev F1, in points, by calibration at the end
Data = str | Path | Sequence[Document]  # a file, or documents


def train(
    data: Data | None = None,
    *,
    train: Data | None = None,
    dev: Data | None = None,
    test: Data | None = None,
    out: str | Path | None = None,
    encoder: str | Path | None = None,
    config: str | Path | None = None,
    init: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    callbacks: Callbacks | None = None,
    **settings: Any,
) -> Recognizer:
    """Train a model in the new directory `out`; returns it, with evaluations in `model.scores["dev"]` and ["test"].

    `data`: a folder with files called train, dev and test, or the training data alone. `train`, `dev` and `test` are
    files or documents; without `dev`, a part of `train` takes its place. `encoder`: a folder or hub name. `config`: a
    recipe or TOML file; with `default`, small data gets smaller batches and more updates. `init`: a model to start
    from, with its settings unless there is a `config`; it learns further labels. Any other keyword is a key of the
    settings, such as epochs=3, encoder_lr=1e-5 or seed=2; a key of several sections needs its section:
    model__dropout=0.2. `resume`: continue an interrupted run in `out`, on the same data, with the settings of the run.
    `callbacks`: what training reports to; None: a progress bar on a terminal, and the logger `nestree` at level INFO.
    """
    if out is None:
        for name in settings:
            if OTHER_NAMES.get(name) == "out":
                raise InputError(f"{name}={settings[name]!r}: did you mean out?")
        raise InputError("name a new directory with out=DIR.")
    folder, given = Path(out), {"train": train, "dev": dev, "test": test}
    if data is not None:
        is_folder = isinstance(data, str | Path) and Path(data).is_dir()
        found: Mapping[str, Data] = part_files(Path(str(data))) if is_folder else {"train": data}
        given = {part: found.get(part) if source is None else source for part, source in given.items()}
    sources = {part: source for part, source in given.items() if source is not None}
    if "train" not in sources:
        remedy = "Name the data of the run again." if resume else "Give a folder, a file or documents."
        raise InputError(f"there is no training data. {remedy}")
    if callbacks is not None and not isinstance(callbacks, Callbacks):
        raise InputError(f"callbacks is {callbacks!r:.60}; it must be an instance of a subclass of Callbacks.")
    if encoder is not None:
        settings["encoder__path"] = str(encoder)
    if resume and (settings or config or init):
        raise InputError("a run is resumed with its own settings. Leave encoder, config, init and settings out.")
    if init is not None and settings.keys() & {"encoder__path", "path"}:
        raise InputError("init brings the encoder of its model with it. Leave encoder out.")
    start = None if init is None else hub.resolve(init)
    if resume:
        own = Settings.load(folder / checkpoint.CONFIG)
    else:
        own = load_init_settings(start) if start and config is None else Settings.read(config or "default")
    chosen = change_settings(own, settings)
    documents: dict[str, list[Document]] = {}
    for part, source in sources.items():
        items = formats.read(Path(source)) if isinstance(source, str | Path) else source
        documents[part] = [Document((item,)) if isinstance(item, Sentence) else item for item in items]
        for item in documents[part]:
            if not isinstance(item, Document):
                raise InputError(f"{part} data are documents or sentences, and one is {item!r:.40}.")
    corpus = make_corpus(
        documents["train"],
        documents.get("dev"),
        documents.get("test"),
        seed=chosen.training.seed,
        crossing_gold=chosen.training.crossing,
        context=chosen.encoder.context,
    )
    if not resume and config in (None, "default") and not settings.keys() & {"batch_words", "training__batch_words"}:
        epochs = settings.get("epochs", settings.get("training__epochs"))
        chosen, corpus = adapt_to_small_data(chosen, corpus, epochs)
    files = {part: os.path.realpath(s) for part, s in sources.items() if isinstance(s, str | Path)}
    names = ", ".join(dict.fromkeys(Path(path).name for path in files.values()))
    about = {"data": names} if names else {}
    origin = {"options": {}, **files, "card": about}  # for `nestree train --resume`
    with ProgressBar() if callbacks is None else nullcontext(callbacks) as shown:
        result = fit(
            chosen,
            corpus,
            folder,
            resume=resume,
            init=start,
            device=device,
            callbacks=shown,
            origin=origin,
            about=about,
            test=documents.get("test"),
        )
    if result.evaluation is None:
        raise KeyboardInterrupt(f"training is saved in {folder}; continue it with resume=True and the same data")
    model = checkpoint.load(folder, select_device(device))
    model.scores = dict(result.evaluations)
    return model


def change_settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings with other values of some keys, each of which is found in the one section that has it.

    >>> default = Settings.read("default")
    >>> change_settings(default, {"epochs": 3, "model__dropout": 0.2}).training.epochs
    3
    >>> change_settings(default, {"dropout": 0.2})
    Traceback (most recent call last):
        ...
    nestree.errors.ConfigError: dropout=0.2: several sections have this key. Write encoder__dropout or model__dropout.
    >>> change_settings(default, {"batch_size": 8})
    Traceback (most recent call last):
        ...
    nestree.errors.ConfigError: batch_size=8: no setting has this name. Did you mean batch_words?
    """
    values = asdict(settings)
    for name, value in changes.items():
        section, key = find_setting(name, f"{name}={value!r}", "__", OTHER_NAMES.values())
        values[section][key] = value
    return from_values(values, "settings")


@dataclass(frozen=True)
class TrainResult:
    folder: Path
    epochs: int  # that were done
    best_epoch: int
    seconds: float  # spent on training
    why: str  # training ended
    evaluations: Mapping[str, Evaluation]  # of the best epoch on "dev" and "test"; {}: training was interrupted
    card: Card | None  # None: training was interrupted

    @property
    def evaluation(self) -> Evaluation | None:
        """On dev; None: training was interrupted."""
        return self.evaluations.get("dev")


def fit(
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
    test: Sequence[Document] | None = None,
) -> TrainResult:
    """Train a model and leave the best epoch in `folder`; with `resume`, continue an interrupted run there.

    `init`: the directory of a model to start from. `origin` is saved for a resumed run: see `origin_of`. `about`:
    entries of the model card (see model_card.about). `teachers`: to distil from, see `distill`. `test`: documents to
    evaluate the best epoch on.
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
                f"{folder} was trained on other data than this: sentences, entities, heads, context or order differ. "
                "Resume with the same files, or train anew in another directory."
            )
        model = checkpoint.build_uninitialized(folder, settings, checkpoint.read_labels(folder))
    else:
        if accelerator.is_main_process:
            files.check_new()  # before the encoder is fetched, which may take long
        trees = settings.model.structure != "none"
        if teachers is None and not any(count_mentions(sentence, trees) for sentence in corpus.train):
            raise TrainingError(
                "in every training sentence with entities, some of them cross, and no tree holds both, so there is "
                "nothing to learn. Correct them, or set training.crossing to drop."
            )
        progress = Progress(corpus.fingerprint, dict(origin or {}), passes=corpus.passes)
        torch.manual_seed(settings.training.seed)
        if init is None:
            model = Recognizer(settings, corpus.labels, settings.encoder.path)
        else:
            model, notes = init_from_model(settings, corpus.labels, init)
            settings = model.settings
            corpus = replace(corpus, notes=(*corpus.notes, *notes))
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
            files.create(sum(value.nbytes for value in model.state_dict().values()))
            checkpoint.save_without_weights(model, folder)
        all_callbacks = [files, *([callbacks] if callbacks else [])]
        if tensorboard:
            all_callbacks.append(TensorBoard(files.tensorboard, progress.epoch - 1))
    accelerator.wait_for_everyone()
    if resume and not progress.finished:
        files.restore_state(model, optimizer)
    step = GradientStep(model, corpus.train, accelerator, settings, progress, all_callbacks, teachers)
    with stop_on_interrupt() as stop:
        parts = settings, corpus, files, accelerator, model, optimizer, step, progress, all_callbacks
        run = Run(*parts, stop, save_every)
        if resume:
            note_resumption(run)
        else:
            start_run(run)
        try:
            run_epochs(run)
        finally:
            step.graphs = None  # a traceback would keep its memory
        return finish_run(run, about or {}, test)


def make_accelerator(device: str) -> Accelerator:
    """Mixed precision in bf16 on a GPU, float32 elsewhere; `auto` is the best device available."""
    kind = select_device(device).type
    options: Any = {"cpu": kind == "cpu", "mixed_precision": "bf16" if kind == "cuda" else "no"}
    try:
        return Accelerator(**options)
    except ValueError:  # this process has trained on another device
        AcceleratorState._reset_state(reset_partial_state=True)
        return Accelerator(**options)


def origin_of(folder: Path) -> dict[str, Any]:
    """The `origin` that `fit` got when the run in this directory began."""
    return RunDir(folder).load_progress().origin


def init_from_model(settings: Settings, labels: Sequence[str], init: Path) -> tuple[Recognizer, list[str]]:
    """A model with the weights of another one, and a note if the data has other labels; new ones come last."""
    checkpoint.check_manifest(init)
    old = checkpoint.read_labels(init)
    own = Settings.load(init / checkpoint.CONFIG)
    other_settings = (
        "it has other settings. Leave out --config and --set of what the model consists of, or use --config "
        f"{init / checkpoint.CONFIG}."
    )
    if bool(own.encoder.word_vectors) != bool(settings.encoder.word_vectors):
        raise TrainingError(f"the model in {init} has other word vectors (encoder.word_vectors): {other_settings}")
    settings = replace(settings, encoder=replace(settings.encoder, path=own.encoder.path))
    new = [label for label in labels if label not in old]
    unused = [label for label in old if label not in labels]
    weights = checkpoint.read_weights(init)
    model = checkpoint.build_uninitialized(init, settings, [*old, *new])
    for name, target in model.state_dict().items():
        source = weights.get(name)
        if source is None and name.startswith("head_prior."):
            continue  # the other model has no head prior; it is learned quickly
        growth = [-1]  # of each axis
        if source is not None and source.ndim == target.ndim:
            growth = [ours - theirs for ours, theirs in zip(target.shape, source.shape, strict=True)]
        if source is None or sorted(filter(None, growth)) not in ([], [len(new)]):
            raise TrainingError(
                f"the model in {init} has no {name} of the shape {list(target.shape)}: {other_settings}"
            )
        target[tuple(slice(size) for size in source.shape)].copy_(source)
    kept = "labels that it keeps, but may unlearn, as the data lacks them"
    parts = {"labels that are new to it": new, kept: unused}
    changes = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)
    return model, [f"starting from {init.name}; {changes}."] if changes else []


def note_resumption(run: Run) -> None:
    """Tell the user where the run is resumed."""
    progress = run.progress
    if progress.finished:
        run.step.notify(
            f"this run is finished ({progress.finished}): its best epoch is evaluated again. To train on, start "
            f"a new run with --init {shlex.quote(str(run.folder.path))}."
        )
        return
    place = f"update {progress.updates + 1}, in epoch {progress.epoch} of {run.settings.training.epochs}"
    best = f"; best dev F1 so far: {100 * progress.best_f1:.2f} in epoch {progress.best_epoch}"
    run.step.notify(f"resuming with {place}{best if progress.best_epoch else ''}.")


def start_run(run: Run) -> None:
    """Write the first line of the log, notes for the user, and the first state: the run can be resumed now."""
    settings, processes = run.settings, run.accelerator.num_processes
    if run.is_main:
        sizes = {"train": len(run.corpus.train), "dev": len(run.corpus.dev)}
        run.folder.log_event("start", updates=0, processes=processes, **sizes)
    if processes > 1:
        run.step.notify(f"{processes} processes share each update.")
    for note in run.corpus.notes:
        run.step.notify(note)
    if settings.encoder.context and not any(any(s.context or ()) for s in run.corpus.train):
        run.step.notify(
            f"encoder.context is {settings.encoder.context}, but no sentence has any: give documents of several "
            "sentences (in JSON lines, with a doc_id), and `context` to `make_corpus`."
        )
    if settings.loss.gold_heads:
        note_unused_heads(run)
    decoding = settings.decoding
    if settings.model.head_prior and (decoding.method == "spans" or not decoding.head_prior_weight):
        run.step.notify(
            f'model.head_prior will be trained but not used, because decoding.method is "{decoding.method}" and '
            f"decoding.head_prior_weight is {decoding.head_prior_weight:g}. To use it, set decoding.method to "
            '"viterbi" or "mbr" and decoding.head_prior_weight to 2.'
        )
    labels = [{(e.span, e.label) for e in s.entities} for s in run.corpus.annotated]
    several = sum(len(pairs) - len({span for span, _ in pairs}) for pairs in labels)
    if several and settings.loss.label == "softmax" and settings.model.labeling != "none":
        run.step.notify(
            f"{several:,} training {'entity has' if several == 1 else 'entities have'} the words of another one with "
            'another label, and loss.label = "softmax" gives a span one label. To find all, set it to "ranking".'
        )
    save(run)


def note_unused_heads(run: Run) -> None:
    """Tell the user if loss.gold_heads has nothing to learn from, or if annotated heads contradict each other."""
    count, latent = 0, []
    for sentence in run.corpus.annotated:
        if with_head := [entity for entity in sentence.entities if entity.head is not None]:
            gold = run.model.collator.sentence_gold(sentence)
            headless = gold.spans[gold.heads < 0].tolist()
            count += len(with_head)
            latent += [(sentence, entity) for entity in with_head if [*entity.span] in headless]
    if not count:
        run.step.notify("loss.gold_heads is true, but no training entity has a head, so heads stay latent.")
    for sentence, entity in latent[:1]:
        run.step.notify(
            f"{len(latent):,} of {count:,} annotated heads stay latent, because entities on the same words, inside or "
            "around have heads that contradict them (loss.gold_heads). The first: "
            f"{id_or_words(sentence)}: {entity} with head {entity.head}."
        )


def finish_run(run: Run, about: Mapping[str, str], test: Sequence[Document] | None) -> TrainResult:
    """Calibrate the best epoch on dev, evaluate it, and write its scores and its model card."""
    progress, model, folder = run.progress, run.model, run.folder.path
    done, best = progress.epoch - 1, progress.best_epoch
    if not progress.finished:
        return TrainResult(folder, done, best, progress.seconds, "interrupted", {}, None)
    run.accelerator.wait_for_everyone()
    weights = checkpoint.read_weights(folder)
    checkpoint.check_shapes(model.state_dict(), weights, folder / checkpoint.WEIGHTS)
    model.load_state_dict(weights)
    fitted = [fit_temperatures(model, run.corpus.dev) if run.is_main else None]
    model.temperatures = Temperatures(*broadcast_object_list(fitted)[0])
    if run.is_main:
        checkpoint.save_info(model, folder)
    if run.settings.decoding.tune:
        model.settings = run.settings = tune_decoding(run)
        decoding = run.settings.decoding
        run.step.notify(
            f'chosen on dev: decoding.method = "{decoding.method}", decoding.threshold = {decoding.threshold:g}.'
        )
        if run.is_main:
            checkpoint.write_text(folder / checkpoint.CONFIG, run.settings.to_toml())
    evaluation = evaluate_distributed(run, run.corpus.dev, scored=True)
    before, after = 100 * progress.best_f1, 100 * evaluation.entities.f1
    if abs(after - before) >= NOTED_CHANGE:
        run.step.notify(f"with calibrated probabilities, dev F1 is {after:.2f}; in epoch {best} it was {before:.2f}.")
    evaluations = {"dev": evaluation}
    if test is not None:
        evaluations["test"] = evaluate_distributed(run, model.sentences_with_context(test), scored=True)
        if run.is_main:
            warn_disjoint_labels(evaluations["test"])
    statistics = {"train": count_statistics(run.corpus.annotated), "dev": count_statistics(run.corpus.dev)}
    training = f"This is epoch {best} of {done}, the best on dev; training took {progress.seconds:,.0f} seconds."
    card = Card(run.settings, model.labels, about, statistics, evaluations, training)
    result = TrainResult(folder, done, best, progress.seconds, progress.finished, evaluations, card)
    if run.is_main:
        checkpoint.save_manifest(folder)
        checkpoint.write_text(folder / checkpoint.CARD, str(card))
        save_scores(result)
    run.accelerator.wait_for_everyone()
    return result


def save_scores(result: TrainResult) -> None:
    """Write the scores of the model as JSON."""
    values: dict[str, Any] = {"seconds_per_epoch": result.seconds / max(1, result.epochs)}
    values |= {part: to_json(evaluation) for part, evaluation in result.evaluations.items()}
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    checkpoint.write_text(RunDir(result.folder).scores, text)


def summary(result: TrainResult) -> str:
    """The result as a text for the terminal."""
    lines = [f"{result.epochs} epoch{'s' * (result.epochs != 1)} in {format_duration(result.seconds)}; {result.why}."]
    if result.evaluation is None:
        return lines[0]
    names = {"dev": f"best epoch {result.best_epoch}: dev", "test": "test:"}
    for name, score in ((names[part], each.entities) for part, each in result.evaluations.items()):
        lines.append(f"{name} P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  F1 {100 * score.f1:.2f}")
    lines.append(f"model: {result.folder}")
    kinds: dict[str, list[str]] = {}
    for error in result.evaluation.errors:
        kinds.setdefault(f"{ERROR_NAMES[error.kind]} {error.label}", []).append(describe_error(error))
    if kinds:
        lines += ["", f"typical errors on dev, of {len(result.evaluation.errors):,} errors:"]
    for kind, errors in sorted(kinds.items(), key=lambda item: -len(item[1]))[:SHOWN_ERRORS]:
        lines.append(f"  {len(errors):>4} x {kind}, such as: {errors[len(errors) // 2]}")
    advice = f"Try it: nestree show TEXT.txt --model {shlex.quote(str(result.folder))}"
    if not result.evaluation.entities.f1:
        advice = (
            "It has learned nothing yet. Give it more updates: more epochs (--epochs 40), or smaller batches "
            "(--batch-words 150)."
        )
        gold = {label for label, score in result.evaluation.labels.items() if score.gold}
        if result.card and gold.isdisjoint(result.card.labels):
            advice = "Dev has no entity with a label of the training data, so its F1 is 0. Give other dev data."
    return "\n".join([*lines, "", advice])
