"""How much annotation active learning saves: a simulated annotator, on data sets whose gold is known.

    python -m benchmarks.selection run --data DIR --encoder PATH --out FILE gum_open:random gum_open:f1-loss+k-means:1,2
    python -m benchmarks.selection report FILE...

A simulation is DATA:STRATEGY[:SEEDS]. It begins with a random sample of 4,000 words; then, for each budget, a model is
trained from scratch as `nestree train` does, with a dev set cut to 4,000 words, scored on test, and asked by
`nestree.select` what to annotate up to the next budget; gold is the answer. Simulations of one seed begin with the same
sentences. Strategies:

    CRITERION[+DIVERSITY]   whole sentences, by a criterion of `nestree.select`: random, mnlp+k-means; with @N after
                            it, the cost of a sentence has N extra words (acquisition.EXTRA_WORDS): f1-loss@0
    review@P                the sentences of f1-loss, of which only the spans are decided whose two most probable
                            outcomes differ by less than P; what the model says of all others is taken as it is
    partial                 single spans; as many questions as whole sentences of that budget would have entities;
                            partial@init: each model starts from the one before
    full                    one model on all of the training data

A decision is an entity of a sentence to be annotated that is gold or predicted, as the annotator confirms, corrects,
deletes or adds it; or the answer to a question about a span. Words read are those of all sentences that are shown.

Simulations run side by side in processes. Each round of each is a row of the output file, which is written as rows
arrive. `--resume FILE` goes on with the simulations of a former output, which Ctrl-C or `timeout` ended.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.processes import Send, run_processes
from benchmarks.tables import interpolate, latest_runs, selection_table
from benchmarks.timing import Row, provenance, store
from nestree import acquisition, checkpoint, training
from nestree.acquisition import select
from nestree.config import Settings
from nestree.data import formats
from nestree.evaluation import evaluate
from nestree.nn.devices import select_device
from nestree.pipeline import Pipeline, PredictOptions, predict
from nestree.training.dataset import part_files
from nestree.types import Document, Entity, Sentence

BUDGETS = (4_000, 8_000, 16_000, 32_000, 64_000)
DEV_WORDS = 4_000
FIRST_COSTS = {"words": "words", "decisions": "entities"}  # of the first sample, which has no predictions


@dataclass(frozen=True)
class Simulation:
    data: Path
    strategy: str
    seed: int
    budgets: tuple[int, ...]
    options: argparse.Namespace
    done: tuple[Row, ...] = ()  # rows of a former run

    @property
    def name(self) -> str:
        return f"{self.data.name}-{self.strategy}-{self.seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run", help="simulate")
    add = run.add_argument
    add("simulations", nargs="+", metavar="DATA:STRATEGY[:SEEDS]")
    add("--data", type=Path, required=True, metavar="DIR", help="a directory of data sets")
    add("--encoder", required=True, metavar="PATH")
    add("--out", type=Path, required=True, metavar="FILE", help="the JSON file")
    add("--resume", type=Path, metavar="FILE", help="an output of this program to go on with")
    add("--budgets", default=",".join(map(str, BUDGETS)), metavar="WORDS,...")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    add("--jobs", type=int, default=12, help="simulations at once")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--commit", help="the commit to record outside a git checkout")
    report = commands.add_parser("report", help="print tables of results")
    report.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "report":
        lines = (line for path in options.files for line in path.read_text().splitlines())
        rows = [row for line in lines for row in json.loads(line)["rows"]]
        print_report(rows)
        return 0
    started = time.time()
    former = json.loads(options.resume.read_text())["rows"] if options.resume else []
    simulations = make_simulations(options, former)
    result = {
        "benchmark": "selection",
        **provenance(select_device(options.device).type, options.commit),
        "side_by_side": min(options.jobs, len(simulations)),
        "changes": options.set,
        "rows": list(former),
    }
    errors: dict[str, str] = {}

    def receive(name: str, row: Row) -> None:
        if "why" in row:
            errors[name] = row["why"]
            return
        result["rows"].append(row)
        f1 = f"test F1 {row['f1']:.2f}, {row['seconds']:.0f} s"
        print(f"{time.time() - started:5.0f} s  {name} {row['words']:,} words: {f1}", file=sys.stderr)
        store(result, options.out)

    run_processes(run_simulation, {one.name: one for one in simulations}, options.jobs, receive)
    if result["rows"]:
        print_report(result["rows"])
    for name, error in errors.items():
        print(f"{name}: {error}")
    return int(bool(errors))


def make_simulations(options: argparse.Namespace, former: Sequence[Row]) -> list[Simulation]:
    budgets = tuple(int(budget) for budget in options.budgets.split(","))
    simulations = []
    for spec in options.simulations:
        data, strategy, seeds = (*spec.split(":"), "1")[:3]
        for seed in map(int, seeds.split(",")):
            key = data, strategy, seed
            done = tuple(row for row in former if (row["data"], row["strategy"], row["seed"]) == key)
            simulations.append(Simulation(options.data / data, strategy, seed, budgets, options, done))
    return simulations


# One simulation, in its process


def run_simulation(simulation: Simulation, send: Send) -> None:
    for row in simulate(simulation):
        send(row)


def simulate(simulation: Simulation) -> Iterable[Row]:
    """The rows of the rounds that are not done yet."""
    parts = {part: list(formats.read(path)) for part, path in part_files(simulation.data).items()}
    gold = [replace(s, id=str(k)) for k, s in enumerate(s for d in parts["train"] for s in d.sentences)]
    test = [sentence for document in parts["test"] for sentence in document.sentences]
    dev = cut([s for d in parts["dev"] for s in d.sentences], DEV_WORDS, simulation.seed)
    budgets = (sum(len(s.words) for s in gold),) if simulation.strategy == "full" else simulation.budgets
    # What is known: whole sentences by number, and answers to questions by number.
    whole = {int(s.id or 0) for s in cut(gold, min(budgets[0], sum(len(s.words) for s in gold)), simulation.seed)}
    answers: dict[int, Sentence] = {}
    row: Row = {name: sum(len(getattr(gold[k], part)) for k in whole) for name, part in FIRST_COSTS.items()}
    for former in simulation.done:
        whole |= set(former["picked"].get("whole", ()))
        for number, known, forbidden in former["picked"].get("answers", ()):
            answers[number] = replace(
                gold[number],
                entities=[Entity(*entity) for entity in known],
                complete=forbidden is None,
                forbidden=[tuple(span) for span in forbidden or ()],
            )
        row = {"words": former["words_next"], "decisions": former["decisions_next"]}
    previous: Path | None = None
    for number, budget in enumerate(budgets):
        if number < len(simulation.done):
            continue
        started = time.time()
        folder = Path(tempfile.mkdtemp(prefix="selection-"))
        try:
            init = previous if simulation.strategy == "partial@init" else None
            pipeline = train(simulation, [gold[k] for k in sorted(whole)], answers, dev, folder / "model", init)
            predicted = predict(pipeline.model, test, options=PredictOptions(scored=True))
            scores = evaluate(test, predicted, resamples=0)
            row |= {
                "data": simulation.data.name,
                "strategy": simulation.strategy,
                "seed": simulation.seed,
                "budget": budget,
                "f1": 100 * scores.f1,
                "dev_f1": 100 * evaluate(dev, predict(pipeline.model, dev), resamples=0).f1,
                "train_seconds": time.time() - started,
            }
            following = costs_after(row, 0, 0)
            if number + 1 < len(budgets):
                begun = time.time()
                wanted = budgets[number + 1] - budget
                if simulation.strategy.startswith("partial"):
                    following = ask(pipeline, gold, whole, answers, wanted, row)
                elif simulation.strategy.startswith("review"):
                    following = review(pipeline, gold, whole, answers, wanted, row, simulation)
                else:
                    following = annotate(pipeline, gold, whole, wanted, row, simulation)
                row["select_seconds"] = time.time() - begun
            yield {**row, **following, "seconds": time.time() - started}
            row = {"words": following["words_next"], "decisions": following["decisions_next"]}
        finally:
            if previous:
                shutil.rmtree(previous.parent, ignore_errors=True)
            previous = folder / "model"
    if previous:
        shutil.rmtree(previous.parent, ignore_errors=True)


def cut(sentences: Sequence[Sentence], words: int, seed: int) -> list[Sentence]:
    """A random sample of about so many words."""
    shuffled, kept = list(sentences), []
    random.Random(f"selection {seed}").shuffle(shuffled)
    for sentence in shuffled:
        if len(sentence.words) <= words:
            kept.append(sentence)
            words -= len(sentence.words)
    return kept


def train(
    simulation: Simulation,
    whole: Sequence[Sentence],
    answers: dict[int, Sentence],
    dev: Sequence[Sentence],
    folder: Path,
    init: Path | None,
) -> Pipeline:
    """A model that is trained as `nestree train` does it."""
    overrides = [*simulation.options.set, f"encoder.path={simulation.options.encoder}"]
    settings = Settings.read("default").with_overrides([*overrides, f"training.seed={simulation.seed}"])
    documents = [[Document((s,)) for s in part] for part in ([*whole, *answers.values()], dev)]
    corpus = training.make_corpus(*documents, seed=simulation.seed)
    settings, corpus = training.adapt_to_small_data(settings, corpus)
    if training.fit(settings, corpus, folder, init=init, device=simulation.options.device).evaluation is None:
        raise InterruptedError("training was stopped")
    return Pipeline(checkpoint.load(folder, select_device(simulation.options.device)))


def costs_after(row: Row, words: int, decisions: int, **picked: list[Any]) -> Row:
    """All costs after a round that adds these, and what it picked, for `--resume`."""
    costs = {"words_next": row["words"] + words, "decisions_next": row["decisions"] + decisions}
    return {**costs, "picked": picked}


def annotate(
    pipeline: Pipeline, gold: Sequence[Sentence], whole: set[int], wanted: int, row: Row, simulation: Simulation
) -> Row:
    """Add whole sentences of up to `wanted` words; returns what they cost."""
    strategy, _, extra_words = simulation.strategy.partition("@")
    by, _, diversity = strategy.partition("+")
    if extra_words:
        acquisition.EXTRA_WORDS = int(extra_words)  # of this process, which runs this simulation alone
    pool = [replace(s, entities=()) for k, s in enumerate(gold) if k not in whole]
    found = select(pool, model=pipeline, budget=wanted, by=by, diversity=diversity or "none", seed=simulation.seed)
    decisions = 0
    numbers = []
    for document in found.documents:
        (predicted,) = document.sentences
        numbers.append(int(predicted.id or 0))
        entities = [{(e.span, e.label) for e in s.entities} for s in (predicted, gold[numbers[-1]])]
        decisions += len(entities[0] | entities[1])
    whole |= set(numbers)
    return costs_after(row, found.words, decisions, whole=numbers)


def review(
    pipeline: Pipeline,
    gold: Sequence[Sentence],
    whole: set[int],
    answers: dict[int, Sentence],
    wanted: int,
    row: Row,
    simulation: Simulation,
) -> Row:
    """Add sentences of up to `wanted` words, whose doubtful spans are decided; returns what they cost."""
    most = float(simulation.strategy.partition("@")[2])
    pool = [replace(s, entities=()) for k, s in enumerate(gold) if k not in whole and k not in answers]
    found = select(pool, model=pipeline, budget=wanted, seed=simulation.seed)
    sentences = [sentence for document in found.documents for sentence in document.sentences]
    measured = acquisition.measure_uncertainty(pipeline, sentences, PredictOptions(margins=sys.maxsize))
    picked, decisions = [], 0
    for predicted, prediction in zip(sentences, measured, strict=True):
        number = int(predicted.id or 0)
        spans = {(span.start, span.end) for span in prediction.margins if span.margin < most}
        entities = [e for e in gold[number].entities if e.span in spans]
        decisions += len(spans) + len(entities) - len({e.span for e in entities})  # one for each label
        entities += [replace(e, score=None) for e in predicted.entities if e.span not in spans]
        answers[number] = replace(gold[number], entities=entities)
        picked.append([number, [[e.start, e.end, e.label] for e in entities], None])
    return costs_after(row, found.words, decisions, answers=picked)


def ask(
    pipeline: Pipeline, gold: Sequence[Sentence], whole: set[int], answers: dict[int, Sentence], wanted: int, row: Row
) -> Row:
    """Ask about single spans: as many as `wanted` words have entities; returns what the answers cost."""
    density = sum(len(gold[k].entities) for k in whole) / sum(len(gold[k].words) for k in whole)
    pool = [answers.get(k) or replace(s, entities=(), complete=False) for k, s in enumerate(gold) if k not in whole]
    found = select(pool, model=pipeline, budget=ceil(wanted * density), partial=True)
    picked = []
    for document in found.documents:
        (asked,) = document.sentences
        number = int(asked.id or 0)
        right, before = gold[number], answers.get(number)
        spans = {entity.span for entity in asked.entities}
        known = [e for e in right.entities if e.span in spans or (before and e in before.entities)]
        forbidden = {*(before.forbidden if before else ()), *(spans - {e.span for e in known})}
        answers[number] = replace(right, entities=known, complete=False, forbidden=sorted(forbidden))
        picked.append([number, [[e.start, e.end, e.label] for e in known], sorted(forbidden)])
    return costs_after(row, found.words, found.questions, answers=picked)


# Results


def print_report(rows: Sequence[Row]) -> None:
    print(selection_table(rows))
    kept = [row for run in latest_runs(rows).values() for row in run]
    for data in sorted({row["data"] for row in kept if in_part(row["strategy"])}):
        print(compare_decisions([row for row in kept if row["data"] == data]))


def in_part(strategy: str) -> bool:
    """Whether only some spans of a sentence are decided."""
    return strategy.startswith(("partial", "review"))


def compare_decisions(rows: Sequence[Row]) -> str:
    """How many decisions whole sentences take for the F1 that each round of partial annotation has."""
    lines = []
    for row in rows:
        if not in_part(row["strategy"]) or row["budget"] == min(r["budget"] for r in rows):
            continue
        for strategy in dict.fromkeys(
            r["strategy"] for r in rows if r["strategy"] != "full" and not in_part(r["strategy"])
        ):
            curve = [r for r in rows if r["strategy"] == strategy and r["seed"] == row["seed"]]
            curve.sort(key=lambda r: r["budget"])
            needed = interpolate(curve, "decisions", row["f1"]) if curve else None
            if needed is not None:
                saved = 100 * (1 - row["decisions"] / needed)
                lines.append(
                    f"{row['data']}, seed {row['seed']}: {row['strategy']} has F1 {row['f1']:.2f} after "
                    f"{row['decisions']:,} decisions and {row['words']:,} words read, "
                    f"{strategy} after {needed:,.0f}: {saved:.0f} % fewer"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
