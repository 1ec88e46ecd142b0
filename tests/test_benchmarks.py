"""Tables and plots match the stored results, and every benchmark runs on a tiny case. Speeds do not matter here."""

import doctest
import importlib
import json
import re
import sys
import time
from pathlib import Path

import pytest

from benchmarks import analysis, datasets, inference, kernels, plots, tables, timing, training, treecrf
from nestree import checkpoint
from nestree.data import formats
from nestree.evaluation import evaluate
from nestree.pipeline import PredictOptions, predict
from nestree.types import Document, Entity, Sentence
from tests import tiny

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-\d+)?")
SVG_ID = re.compile(r"\b[mp][0-9a-f]{10}\b")


# Tables and plots


def test_tables_match_the_results(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().out
    for make_table in tables.PRINTED.values():
        assert make_table().startswith("| ")


def test_plots_match_the_results(tmp_path):
    assert plots.main(["--out", str(tmp_path)]) == 0
    images = ROOT / "docs" / "images"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in images.iterdir())
    for drawn in tmp_path.iterdir():
        assert f"(images/{drawn.name})" in page
        texts = [SVG_ID.sub("id", path.read_text(encoding="utf-8")) for path in (images / drawn.name, drawn)]
        message = f"{drawn.name}: run python -m benchmarks.plots"
        assert NUMBER.sub("#", texts[0]) == NUMBER.sub("#", texts[1]), message
        numbers = [[float(match.group()) for match in NUMBER.finditer(text)] for text in texts]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.01), message


def test_quoted_commands_exist():
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *tables.RESULTS.iterdir(),
        *ROOT.glob("benchmarks/*.py"),
    ]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for name in {name for text in texts for name in re.findall(r"python -m benchmarks\.(\w+)", text)}:
        assert hasattr(importlib.import_module(f"benchmarks.{name}"), "main"), name
    for name in {name for text in texts for name in re.findall(r"benchmarks\.inference ([a-z-]+)", text)}:
        with pytest.raises(SystemExit) as end:
            inference.main([name, "--help"])
        assert end.value.code == 0


def stored_run(data, recipe, seed, f1, *changes, by_sentence=None):
    return {
        **{"data": data, "recipe": recipe, "seed": seed, "changes": ["encoder.path=some", *changes]},
        **{"best_epoch": 2, "epochs_done": 3, "epochs_planned": 3, "dev": {"f1": f1}},
        "test": {"f1": f1, "precision": f1 + 1, "recall": f1 - 1, "by_sentence": by_sentence or [[1, 1, 1]]},
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Stores results in an empty directory."""
    monkeypatch.setattr(tables, "RESULTS", tmp_path)

    def store(name, *rows):
        source = {"device": "some GPU", "date": "2026-11-15T1", "commit": "abc"}
        (tmp_path / name).write_text(json.dumps({"benchmark": "training", **source, "rows": rows}) + "\n")

    return store


def test_runs_that_differ_in_seeds_are_one_row(results):
    both = "ablation/11-both"
    results(
        "a.json",
        stored_run("litbank", both, 1, 80.0),
        stored_run("litbank", both, 2, 82.0),
        {"name": "failed"},
    )
    results("b.json", stored_run("litbank", both, 1, 50.0, "training.rho=1"))
    results("reruns-c.json", stored_run("litbank", both, 2, 81.5))
    lines = tables.ablation().splitlines()
    assert "| 11 | + both | 2 | 82.00 ± 1.41 | 80.00 ± 1.41 | 81.00 ± 1.41 | 07 |  |" in lines
    assert "| 12 | joint likelihood |  |  |  |  | 11 |  |" in lines
    assert lines[-1] == "From some GPU, 2026-11-15, abc, a.json."
    assert "| LitBank | + both | 2 | 82.00 | 81.50 | 81.00 ± 1.41 | 2 | 0.4 | 0.4 |  |  |" in tables.reruns()


def test_permutation_test():
    def p_value(first, second):
        runs = [[stored_run("a", "b", 1, 0, by_sentence=rows)] for rows in (first, second)]
        return tables.permutation_test(*runs, permutations=200)

    assert p_value([[3, 3, 3]] * 60, [[1, 3, 3]] * 60) < 0.01
    mixed = [[3, 3, 3], [1, 3, 3]] * 30
    assert p_value(mixed, mixed[::-1]) > 0.5


def test_a_stale_page_is_reported_and_rewritten(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("nothing here\n")
    page = tmp_path / "docs" / "page.md"
    page.write_text("before\n<!-- table one -->\n| old |\n<!-- end -->\nafter <!-- end -->\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "TABLES", {"one": lambda: "| new |"})
    assert tables.main(["--check"]) == 1
    assert "page.md: tables differ" in capsys.readouterr().out
    assert tables.main([]) == 0
    assert page.read_text() == "before\n<!-- table one -->\n| new |\n<!-- end -->\nafter <!-- end -->\n"
    with pytest.raises(SystemExit, match=r"page.md: there is no table two; there are one"):
        tables.fill_tables("<!-- table two -->\n<!-- end -->", "page.md")


@pytest.mark.parametrize("module", [analysis, inference, plots, tables, timing, treecrf])
def test_docstrings(module):
    assert doctest.testmod(module).failed == 0


# Training


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory with data of eight sentences."""
    folder = tmp_path_factory.mktemp("data") / "eight"
    for part in ("train", "dev", "test"):
        formats.write([Document((sentence,)) for sentence in tiny.SENTENCES], folder / f"{part}.jsonl.gz")
    return folder


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    encoder = f"encoder.path={tiny.encoder(folder / 'encoder')}"
    settings = tiny.settings("default", encoder, "training.batch_words=15", "training.epochs=2")
    (folder / "recipe.toml").write_text(settings.to_toml())
    return folder / "recipe.toml"


def test_training_in_two_processes(data, recipe, tmp_path, capsys):
    out = tmp_path / "out.json"
    options = f"--data {data.parent} --out {out} --jobs 2 --device cpu --commit abc --steps 2 --analyze"
    runs = [f"eight:{recipe}:3", f"eight:{recipe}:1:training.epochs=0"]
    assert training.main([*options.split(), *runs]) == 1
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert (result["commit"], result["side_by_side"]) == ("abc", 2)
    row, failed = result["rows"]
    assert failed["status"] == "failed"
    assert "training.epochs" in failed["why"]
    assert (row["status"], row["epochs_done"], len(row["epochs"])) == ("finished", 2, 2)
    assert row["test"]["f1"] == row["dev"]["f1"]  # of the same sentences
    assert {"train_seconds_per_epoch", "train_sentences_per_second", "robustness", "decoding"} <= row.keys()
    assert row["step"]["steps"] == 2
    assert row["step"]["mean_ms"] > 0
    assert str(recipe.parent) not in json.dumps({**row, "recipe": ""})
    predicted = list(formats.read(tmp_path / "out" / f"{row['name']}.predictions.jsonl.gz"))
    assert [s.words for d in predicted for s in d.sentences] == [s.words for s in tiny.SENTENCES]
    assert not (tmp_path / "out" / row["name"]).exists()


class Reports(list):
    send = list.append


@pytest.mark.parametrize("epochs", [0, 2])
def test_the_budget_stops_a_run(data, recipe, tmp_path, monkeypatch, epochs):
    """Before the first epoch, or after the second; then the best epoch is scored."""

    class Impatient(training.Reporter):
        def epoch(self, end):
            super().epoch(end)
            if end.epoch == epochs:
                self.deadline = time.time()

    monkeypatch.setattr(training, "Reporter", Impatient)
    changes = ("training.epochs=1000", f"training.batch_words={15 if epochs else 1}")
    deadline = time.time() + (3600 if epochs else 0)
    job = training.Job(
        "one", str(data), str(recipe), 3, changes, str(tmp_path / "one"), "cpu", deadline=deadline
    )
    row = training.train_and_score(job, Reports())
    assert row["epochs_planned"] == 1000
    assert epochs <= row["epochs_done"] <= epochs + 1  # a short epoch may end before training stops
    if epochs:
        assert row["status"] == "stopped at the budget"
        assert {"dev", "test"} <= row.keys()
    else:
        assert row["status"] == "stopped before the first epoch was done"


def test_a_process_is_killed_at_the_end_of_the_budget(data, recipe, tmp_path):
    deadline = time.time() + 0.5
    job = training.Job("one", str(data), str(recipe), 3, (), str(tmp_path / "one"), "cpu", deadline=deadline)
    rows = [{"name": "one", "status": "waiting"}, {"name": "two", "status": "waiting"}]
    training.JobRunner([job, job], rows, 1, lambda: None).run_all()
    assert rows[0]["status"] == "cut off at the end of the budget"
    assert rows[1]["status"] == "not begun: the budget was spent"


@pytest.mark.filterwarnings("ignore:CUDA is not available", "ignore:.*Profiler (won't|clears)")
def test_steps_are_profiled():
    """Without a GPU there are no kernels, but every step is seen."""
    profiler = training.StepProfiler()
    steps = []

    def run_pass():
        for number in range(40):
            steps.append(profiler.profiler.step_num)
            profiler.step(number)

    row = profiler.profile(run_pass, 40, 1.0)
    assert steps == list(range(40))
    assert (row["busy_ms"], row["kernels"]) == (0, {})


def test_distillation(data, recipe, tiny_model, tmp_path):
    out = tmp_path / "out.json"
    options = f"--data {data.parent} --out {out} --device cpu --teachers {tiny_model} --keep-models"
    spec = f"eight:{recipe}:1:distill.words=20,distill.raw=1,training.epochs=1"
    assert training.main([*options.split(), "--unlabelled", str(data / "test.jsonl.gz"), "--", spec]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["distill"] == {"words": 20.0, "raw": 1.0}
    assert row["train_sentences"] > len(tiny.SENTENCES)
    assert checkpoint.load(tmp_path / "out" / row["name"]).labels


def test_analysis_agrees_with_the_evaluation(tiny_model, data, tmp_path):
    out = tmp_path / "a.json"
    assert analysis.main(["--data", str(data), "--out", str(out), "--model", str(tiny_model)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    model = checkpoint.load(tiny_model)
    predicted = predict(model, tiny.SENTENCES, options=PredictOptions(scored=True))
    score = evaluate(tiny.SENTENCES, predicted, resamples=0).entities
    for groups in ("depths", "lengths", "nesting", "labels"):
        right, of, _, gold = map(sum, zip(*row["test"]["analysis"][groups].values(), strict=True))
        assert (right, of, gold) == (score.right, score.predicted, score.gold)
    counts = [sum(column) for column in zip(*row["test"]["by_sentence"], strict=True)]
    assert counts == [score.right, score.predicted, score.gold]
    decoders = row["test"]["decoders"]
    assert decoders["mbr 0.2"]["recall"] >= decoders["mbr 0.9"]["recall"]
    assert {"viterbi -2.0", "viterbi 0.0", "viterbi 1.0"} <= decoders.keys()
    with pytest.raises(SystemExit, match="/nowhere is no folder"):
        analysis.main(["--data", "/nowhere", "--out", str(out), "--model", str(tiny_model)])


def test_last_words_of_gold_spans_with_a_head():
    words = ["the", "mayor", "of", "Lisbon", "met", "two", "members"]
    entities = [Entity(0, 4, "PER", head=1), Entity(2, 4, "GPE", head=3), Entity(5, 7, "PER", head=6)]
    entities += [
        Entity(3, 4, "GPE", head=3),
        Entity(4, 7, "X"),
    ]  # a single word and an unknown head do not count
    row = analysis.last_word_heads([Sentence(words, entities)])
    assert (row["judged"], row["accuracy"]) == (3, pytest.approx(200 / 3))


# Derived data sets

ARTICLE = """<article><articleinfo><bibliomisc>MEDLINE:{0}</bibliomisc></articleinfo><title>
<sentence><cons lex="a" sem="G#protein_molecule">Act{0}</cons> and <cons lex="b" sem="G#virus">HIV</cons></sentence>
</title></article>"""


def read_sentences(path):
    return [sentence for document in formats.read(path) for sentence in document.sentences]


def test_proxies(tmp_path):
    shared, out = tmp_path / "shared", tmp_path / "out"
    (shared / "raw" / "genia_gpml").mkdir(parents=True)
    xml = f"<set>{''.join(map(ARTICLE.format, range(20)))}</set>"
    (shared / "raw" / "genia_gpml" / "a.xml").write_text(xml)
    entities = [
        Entity(head, head + 1, "person", head, extra={"infstat": "new", "named": head == 0})
        for head in (0, 2)
    ]
    sentence = Sentence(["Ann", "saw", "her"], entities, extra={"upos": ["PROPN", "VERB", "PRON"]})
    documents = [Document((sentence,) * 4, id=f"GUM_{g}_x") for g in ("academic", "bio", "conversation")]
    for source in ("genia", "litbank", "gum_open"):
        for part in datasets.PARTS:
            formats.write(documents, shared / source / f"{part}.jsonl.gz", "jsonl")
    datasets.main(["proxies", str(shared), str(out)])
    assert len(list(out.rglob("*.gz"))) == 3 * 8

    def sizes(name):
        return [len(read_sentences(out / name / f"{part}.jsonl.gz")) for part in datasets.PARTS]

    def labels(name):
        return {e.label for s in read_sentences(out / name / "train.jsonl.gz") for e in s.entities}

    assert sizes("genia-fine") == [14, 3, 3]
    assert labels("genia-fine") == {"protein_molecule", "virus"}
    assert sizes("gum-fifth") == [3, 12, 12]
    assert sizes("gum-fine") == [6, 12, 12]
    assert labels("gum-fine") == {"person:PROPN", "person:PRON", "name"}
    assert labels("gum-two-labels") == {"person", "new"}
    assert sizes("gum-without-academic") == [8, 8, 12]
    test = formats.read(out / "gum-without-academic" / "test.jsonl.gz")
    assert {document.id for document in test} == {"GUM_academic_x"}


def test_partial_annotation(tmp_path):
    whole = [*tiny.SENTENCES * 20, tiny.TWO_LABELS]
    for part in datasets.PARTS:
        formats.write(
            [Document((sentence,)) for sentence in whole], tmp_path / "in" / f"{part}.jsonl", "jsonl"
        )
    datasets.main(["partial", str(tmp_path / "in"), str(tmp_path), "--share", "0.4"])
    negatives, unknown = (
        read_sentences(tmp_path / f"{n}-40/train.jsonl.gz") for n in ("negatives", "unknown")
    )
    assert [s.entities for s in negatives] == [s.entities for s in unknown]
    assert all(s.complete for s in negatives)
    for sentence, before in zip(unknown, whole, strict=True):
        assert sentence.complete == (len(sentence.entities) == len(before.entities))
    kept = sum(len(s.entities) for s in unknown) / sum(len(s.entities) for s in whole)
    assert 0.5 < kept < 0.7
    assert [s.entities for s in read_sentences(tmp_path / "unknown-40/dev.jsonl.gz")] == [
        s.entities for s in whole
    ]


# Engine


def test_engine(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(treecrf, "peak_cpu", lambda *_: 1.0)  # new processes: slow
    monkeypatch.setattr(treecrf, "ROUNDS", (1, 1))
    monkeypatch.setitem(treecrf.TRIES, "cpu", 1)
    out = tmp_path / "small.json"
    treecrf.main(["--sizes", "2x4,3x8", "--skip-tests", "--out", str(out), "--commit", "abc"])
    assert out.read_text() == capsys.readouterr().out.splitlines()[-1] + "\n"
    assert [file.name for file in tmp_path.iterdir()] == ["small.json"]
    result = json.loads(out.read_text())
    assert (result["commit"], result["tests"], len(result["rows"])) == ("abc", None, 2 * (4 + 3))
    for row in result["rows"]:
        assert row["ours"]["wall"]["low"] <= row["ours"]["wall"]["median"] <= row["ours"]["wall"]["high"]
        assert row["ratio"]["reference"]["wall"] > 0
        assert ("torch-struct" in row["ratio"]) == (row["trees"] == "plain")


def test_no_speed_without_passing_tests(monkeypatch):
    monkeypatch.setitem(treecrf.TESTS, "cpu", ["tests/test_no_such_file.py"])
    with pytest.raises(SystemExit, match="no speed is reported"):
        treecrf.run_tests("cpu")


def test_libraries_that_are_too_slow_or_too_large_are_skipped(monkeypatch, tmp_path):
    inputs = treecrf.random_inputs("lexical", 2, 8, "cpu", 0, treecrf.torch.float32)
    past = {"trees": "lexical", "operation": "forward", "batch": 2, "n": 4}
    past["reference"] = {"wall": timing.Spread(1e4, 1e4, 1e4, 1)}
    library, row = treecrf.load_library("reference", "cpu"), {**past, "n": 8}
    assert treecrf.reason_to_skip(library, row, inputs, "cpu", []) is None
    assert treecrf.reason_to_skip(library, row, inputs, "cpu", [past]) == "one run would take about 160 s"
    monkeypatch.setattr(treecrf.memory, "free_bytes", lambda device: 1024)
    assert "GiB are free" in treecrf.reason_to_skip(library, row, inputs, "cpu", [])
    with pytest.raises(SystemExit, match=r"has no supar/structs/tree\.py"):
        treecrf.load_library("SuPar", "cpu", tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_is_that_of_the_call():
    size = ("lexical", "forward + backward", 16, 30)
    peak = timing.peak_cpu(treecrf.calls_for_memory, "reference", None, *size)
    assert peak == pytest.approx(16 * 30**4 * 8 / timing.MIB, rel=0.5)  # n^4 float64 numbers under autograd


def test_the_quietest_try_counts(monkeypatch):
    clock, samples = iter([0.0, 9.0, 9.0, 9.5, 9.5, 12.0]), iter(range(1, 4))
    monkeypatch.setattr(timing, "other_cpu_seconds", lambda: next(clock) * 1e6)
    monkeypatch.setattr(timing, "wait_for_quiet", lambda: None)
    competitor = timing.Competitor(lambda: {"wall": float(next(samples))}, 1)
    spreads, cores = timing.interleave_quietly({"a": competitor}, rounds=0, tries=3)
    assert spreads["a"]["wall"].median == 2.0
    assert cores > timing.QUIET


def test_buckets(data, recipe, capsys):
    encoder = str(recipe.parent / "encoder")
    kernels.main(["buckets", "--data", str(data / "train.jsonl.gz"), "--encoder", encoder, "--epochs", "3"])
    result = json.loads(capsys.readouterr().out)
    assert result["data"] == "eight/train.jsonl.gz"
    (row,) = result["rows"]  # eight sentences are one batch
    assert (row["updates"], row["new"], row["shapes"], row["once"]) == (3, [1, 0, 0], 1, 0)
    # 8 sentences of up to 10 words become 10 of 16 words.
    assert row["charts"] == pytest.approx(10 * 17**2 * 16 / (8 * 11**2 * 10), rel=1e-4)
    assert 1 < row["subwords"] < 2


# Inference


def run_inference(capsys, *arguments):
    assert inference.main([*map(str, arguments), "--device", "cpu"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_inference_of_sentences(data, tiny_model, capsys):
    options = [
        "--model",
        tiny_model,
        "--data",
        data / "test.jsonl.gz",
        "--batch-words",
        "20,100",
        "--rounds",
        1,
    ]
    result = run_inference(capsys, "sentences", *options, "--text")
    assert (result["sentences"], result["words"]) == (8, sum(len(s.words) for s in tiny.SENTENCES))
    stages = [(stage, size) for size in (20, 100) for stage in ("words to entities", "encoder alone")]
    stages.append(("text to entities", inference.BATCH_WORDS))
    assert [(row["stage"], row["batch_words"]) for row in result["rows"]] == stages
    assert all(row["sentences_per_second"] > 0 for row in result["rows"])
    with pytest.raises(SystemExit, match=r"/nowhere.jsonl does not exist"):
        inference.main(["sentences", "--data", "/nowhere.jsonl", "--device", "cpu"])


PEER = """
import json, sys
texts = json.load(open(sys.argv[3]))
assert sys.argv[1:3] == ["read", "some-model"] and len(texts) == 2
for line in sys.stdin:
    print(json.dumps({"seconds": {"wall": 4.0, "processor": 2.0}, "words": 9, "spans": 1}), flush=True)
print(json.dumps({"peer": "a peer", "sizes": [1, 3]}))
"""


def test_inference_of_texts_beside_a_peer(tiny_model, tmp_path, capsys, monkeypatch):
    texts = ["Lisbon voted. She left Oslo.", "the club"]
    monkeypatch.setattr(inference, "read_gum", lambda shared, part: [Document((), text) for text in texts])
    monkeypatch.setattr(inference, "SPANCAT", tmp_path / "peer.py")
    (tmp_path / "peer.py").write_text(PEER)
    monkeypatch.setattr(inference, "measure_startup", lambda model: {"load_seconds": 1.0})
    options = ["--model", tiny_model, "--rounds", 1, "--threads", 1]
    result = run_inference(capsys, "texts", *options, "--peer", sys.executable, "some-model")
    assert (result["texts"], result["words"]) == (2, 9)
    ours, peer = result["rows"].values()
    assert peer["words_per_second"] == pytest.approx(9 / 4)  # by its own clock
    assert peer["ratio_of_ours"] == pytest.approx(
        ours["words_per_second"] / peer["words_per_second"], rel=1e-4
    )
    assert list(result["rows"])[1] == "a peer, spans of up to 3 words"


def test_inference_by_length(data, tiny_model, capsys):
    options = ["--data", data / "test.jsonl.gz", "--rounds", 1]
    rows = run_inference(capsys, "lengths", tiny_model, *options)["rows"]
    assert sum(row["sentences"] for row in rows) == len(tiny.SENTENCES)
    assert all(row["training_per_second"] > 0 and row["inference_per_second"] > 0 for row in rows)
    with pytest.raises(SystemExit, match="two models have one name"):
        inference.main(["lengths", str(tiny_model), str(tiny_model), *map(str, options)])


def test_calibration(data, tiny_model, capsys):
    path = data / "test.jsonl.gz"
    result = run_inference(capsys, "calibration", path, "--eval", path, "--model", tiny_model)
    assert result["sentences"] == {"fit": 8, "eval": 8}
    unfitted, fitted = result["unfitted"], result["fitted"]
    assert [(row["by"], row["threshold"]) for row in fitted["decoders"]] == inference.DECODERS
    assert unfitted["decoders"][0]["f1"] == fitted["decoders"][0]["f1"]  # of Viterbi decoding
    assert unfitted["decoders"][0]["brier"] > fitted["decoders"][0]["brier"]
    assert fitted["groups"][0]["number"] > 8


def test_raw_text(shared, capsys):
    row = run_inference(capsys, "raw-text", "--shared", shared, "--sets", "gum test")["rows"]["gum test"]
    assert (row["documents"], row["entities"]) == (2, 595)
    assert row["text"]["f1"] == pytest.approx(0.63, abs=0.05)
