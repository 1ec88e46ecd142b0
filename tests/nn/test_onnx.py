"""Exported models against PyTorch: scores, entities, windows, constraints, 8 bits, damage, and what is refused."""

import json
import logging
import pickle
import shutil

import pytest
import torch

import nestree
from nestree import checkpoint
from nestree.errors import DataError, InputError, ModelError
from nestree.nn.onnx import FORMAT, LABEL_GRAPH, SCORE_GRAPH, float_products, named_tensors, quiet
from nestree.types import Sentence
from tests import tiny
from tests.cli.run import nestree as run
from tests.cli.run import refuse

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra `onnx` is not installed")

TEXT = "The mayor of Lisbon met the president. Police in Oslo arrested two members of the group."
SETTINGS = {  # an encoder, a recipe and changes of it
    "mpnet": ("mpnet", "ablation/06-lexical-two-stage", ["model.rotary=true", "model.head_prior=true"]),
    "transformers": ("modernbert", "ablation/03-tree-one-stage", ["encoder.word_shape_size=0"]),
}


@pytest.fixture(scope="module")
def pair(tiny_model, tmp_path_factory):
    """A model in PyTorch and its export."""
    folder = tmp_path_factory.mktemp("onnx") / "exported"
    nestree.export(tiny_model, folder)
    return tiny_model, folder


def random_sentences():
    """Of odd sizes, the longest with several windows of subwords."""
    words = [word for sentence in tiny.SENTENCES for word in sentence.words]
    return [Sentence((words * 3)[:size]) for size in (1, 2, 5, 17, 31)] + tiny.SENTENCES


def assert_same_scores(model, exported):
    for batch in ([0], [1, 0], [3, 2, 0], [4], [4, 1, 9]):
        sentences = [random_sentences()[k] for k in batch]
        with torch.inference_mode():
            inputs = model.collate_words(sentences)
            expected, scores = model(inputs), exported(exported.collate_words(sentences))
        found, right = (
            {name: value for name, value in named_tensors(s).items() if not name.startswith("label_")}
            for s in (scores, expected)
        )
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
        assert (scores.labels is None) == (expected.labels is None)
        if expected.labels is not None:
            b = torch.arange(len(batch))[:, None]
            j = torch.stack([inputs.lengths, (inputs.lengths + 1) // 2], 1)
            arguments = b, torch.zeros_like(j), j, torch.zeros_like(j)
            with torch.inference_mode():
                expected_labels = expected.labels.score_spans(*arguments)
                found_labels = scores.labels.score_spans(*arguments)
                torch.testing.assert_close(found_labels, expected_labels, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", *SETTINGS])
def test_scores_are_those_of_pytorch_for_any_shape(name, pair, tmp_path):
    if name == "bert":
        model, folder = checkpoint.load(pair[0]), pair[1]
    else:
        family, recipe, changes = SETTINGS[name]
        encoder = tiny.encoder(tmp_path / "encoder", family)
        model = tiny.model(encoder, recipe, "encoder.lstm_layers=0", *changes, seed=1).eval()
        folder = tmp_path / "exported"
        checkpoint.export(model, folder)
    assert not (folder / checkpoint.WEIGHTS).exists()
    assert (folder / LABEL_GRAPH).exists() == (name != "transformers")
    assert_same_scores(model, checkpoint.load(folder))


def test_a_pipeline_works_as_without_it(pair):
    ours, exported = (nestree.load(folder, precision="float32") for folder in pair)
    assert "onnxruntime" in repr(exported)
    assert exported(TEXT).entities  # else it would be easy
    for options in (
        {},
        {"threshold": 0.9},
        {"threshold": {"PER": 0.8}, "labels": ["PER", "GPE"]},
        {"known": [(0, 3, "ORG")], "forbidden": [(13, 19)]},
    ):
        expected, found = ours(TEXT, **options), exported(TEXT, **options)
        spans = [[(e.start, e.end, e.label, e.head) for e in document] for document in (found, expected)]
        assert spans[0] == spans[1]
        assert [e.score for e in found] == pytest.approx([e.score for e in expected], abs=1e-3)
        trees = [[(s.tree.spans, s.tree.arcs, s.tree.root) for s in d.sentences] for d in (found, expected)]
        assert trees[0] == trees[1]
    assert exported(TEXT, known=[(0, 3, "ORG")]).entities[0].label == "ORG"
    cut_ours, cut = (nestree.load(folder, max_sentence_words=8, precision="float32") for folder in pair)
    long = [random_sentences()[4]]
    assert cut.words(long)[0].extra == {"windows": 7}
    spans, expected_spans = ([(e.span, e.label) for e in p.words(long)[0].entities] for p in (cut, cut_ours))
    assert spans == expected_spans


def test_copies_and_pickles(pair, tmp_path):
    exported = nestree.load(pair[1])
    exported.save_pretrained(tmp_path / "copy")
    for name in json.loads((pair[1] / checkpoint.MANIFEST).read_text())["files"]:
        assert (tmp_path / "copy" / name).read_bytes() == (pair[1] / name).read_bytes()
    again = pickle.loads(pickle.dumps(exported))
    assert again(TEXT).entities == exported(TEXT).entities


def test_the_command_exports_to_8_bits_and_scores(tiny_model, tiny_data, tmp_path):
    done = run("export", tiny_model, "--onnx", tmp_path / "small", "--int8", "--data", tiny_data)
    assert done.exit_code == 0, done.stderr
    assert "in PyTorch" in done.stderr
    assert "8 bits" in done.stderr
    small = nestree.load(tmp_path / "small")
    assert "int8" in repr(small)
    assert "F1" in small.model.card
    ours = nestree.load(tiny_model)
    agree = nestree.evaluate(ours.words(tiny.SENTENCES), small.words(tiny.SENTENCES)).entities.f1
    assert agree > 0.9
    log = run("predict", tiny_data, "--model", tmp_path / "small", "-v")
    assert log.exit_code == 0
    assert "onnxruntime" in log.stderr
    assert "exported to ONNX already" in refuse("export", tmp_path / "small", "--onnx", tmp_path / "twice")


def test_what_an_exporter_does_to_logging_is_undone(monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    with quiet():
        logging.basicConfig(level=1)
    assert (logging.root.handlers, logging.root.level > 1) == ([], True)


def test_weights_that_stay_float_are_found():
    from onnx import TensorProto, helper

    weight = helper.make_tensor("weight", TensorProto.FLOAT, [2, 2], [1.0] * 4)
    nodes = [
        helper.make_node("Transpose", ["weight"], ["turned"], "turn"),
        helper.make_node("MatMul", ["x", "turned"], ["y"], "product"),
        helper.make_node("MatMul", ["x", "y"], ["z"], "attention"),
    ]
    graph = helper.make_graph(nodes, "g", [], [], [weight])
    assert float_products(helper.make_model(graph)) == ["MatMul product"]


@pytest.mark.parametrize("name", [SCORE_GRAPH, LABEL_GRAPH, checkpoint.LABELS, "encoder/tokenizer.json"])
def test_damaged_folders(name, pair, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(pair[1], folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:-20])
    with pytest.raises(ModelError, match=r"is not the file that manifest\.json describes"):
        nestree.load(folder)
    with pytest.raises(ModelError, match=r"damaged|again"):
        nestree.load(folder, verify=False)
    (folder / name).unlink()
    (folder / checkpoint.MANIFEST).unlink()
    with pytest.raises(ModelError, match="has no "):
        nestree.load(folder)


def test_graphs_without_metadata_and_of_other_versions(pair, tmp_path):
    import onnx

    graph = onnx.load(pair[1] / SCORE_GRAPH)
    shutil.copytree(pair[1], tmp_path / "model")
    for value, message in (
        ("9", "has the format 9"),
        (None, "has the format none"),
        (str(FORMAT), "damaged: a graph has no metadata"),
    ):
        del graph.metadata_props[:]
        if value:
            graph.metadata_props.add(key="format", value=value)
        onnx.save(graph, tmp_path / "model" / SCORE_GRAPH)
        with pytest.raises(ModelError, match=message):
            nestree.load(tmp_path / "model", verify=False)


def test_labels_of_another_model(pair, tmp_path):
    shutil.copytree(pair[1], tmp_path / "model")
    labels = json.loads((tmp_path / "model" / checkpoint.LABELS).read_text())
    labels["labels"] = labels["labels"][:-1]
    (tmp_path / "model" / checkpoint.LABELS).write_text(json.dumps(labels))
    with pytest.raises(ModelError, match=r"has graphs for \d labels, and labels.json names"):
        nestree.load(tmp_path / "model", verify=False)


def test_what_is_refused(pair, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="is in the folder of the model"):
        nestree.export(pair[0], pair[0] / "onnx")
    with pytest.raises(DataError, match="not empty"):
        nestree.export(*pair)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="is a file"):
        nestree.export(pair[0], file)
    with pytest.raises(InputError, match=r"float32, not in int8"):
        nestree.load(pair[1], precision="int8")
    with pytest.raises(InputError, match="runs on a CPU"):
        nestree.load(pair[1]).model.to(torch.device("meta"))
    with pytest.raises(ModelError, match=r"is exported to ONNX. Export the model .* --int8"):
        checkpoint.quantize(pair[1], tmp_path / "small")
    with pytest.raises(ModelError, match="was exported to ONNX and has no weights"):
        checkpoint.read_weights(pair[1])
    model = checkpoint.load(pair[1])
    with pytest.raises(ModelError, match="cannot be trained"):
        model.losses(model.collate(tiny.SENTENCES))
    encoder = tiny.encoder(tmp_path / "encoder")
    for changes, reason in ((["encoder.lstm_layers=1"], "BiLSTM"), (["model.rank=0"], "full triaffine")):
        with pytest.raises(ModelError, match=f"has a {reason}"):
            checkpoint.export(tiny.model(encoder, "default", *changes), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"onnxruntime, which is not installed: pip .*nestree\[onnx\]'"):
        nestree.load(pair[1])
