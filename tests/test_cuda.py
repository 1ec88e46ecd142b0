"""The recogniser on a GPU: the encoder in bfloat16, everything else in float32, and nothing waits."""

import signal
from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import SDPBackend

from nestree import checkpoint, treecrf
from nestree import pipeline as sentences
from nestree.evaluation import evaluate
from nestree.model import Recognizer
from nestree.nn import bert
from nestree.nn.encoder import load_pretrained
from nestree.pipeline import predict
from nestree.training import Callbacks, cuda_graphs, distill, fit, make_corpus
from nestree.training.run_dir import Progress
from nestree.training.step import GradientStep
from nestree.training.train import make_accelerator
from tests import tiny
from tests.training.runs import weights

pytestmark = pytest.mark.cuda
RECIPES = ["default", "paper", "ablation/02-unstructured-two-stage", "ablation/03-tree-one-stage"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.encoder(tmp_path_factory.mktemp("encoder"), "mpnet")


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """Of a family that waits for nothing in any version of transformers; MPNet did in some."""
    return tiny.encoder(tmp_path_factory.mktemp("patient"), "bert")


def make_model(folder, recipe: str = "default", *changes: str) -> Recognizer:
    torch.manual_seed(0)
    return Recognizer(tiny.settings(recipe, *changes), tiny.LABELS, folder)


def in_halves():
    return torch.autocast("cuda", torch.bfloat16)


def gradients(model: Recognizer, device: str, how) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The parts of the loss, and the gradients, on the host."""
    model.to(device).eval()
    model.encoder.lstms.train()  # a GPU gives no gradients of LSTMs that do not learn
    model.zero_grad()
    batch = model.collate(tiny.SENTENCES).to(device)
    with how:
        losses = model.losses(batch)
    (losses.total / losses.mentions).backward()
    parts = {name: value.detach().cpu() for name, value in losses.parts.items()}
    return parts, {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_and_gradients_are_those_of_a_cpu(folder, recipe):
    def fresh() -> Recognizer:
        return make_model(folder, recipe, "encoder.lstm_dropout=0")

    expected, slopes = gradients(fresh(), "cpu", nullcontext())
    exact, found = gradients(fresh(), "cuda", nullcontext())
    for name, value in expected.items():
        torch.testing.assert_close(exact[name], value, rtol=1e-3, atol=1e-3, msg=name)
    for name, value in slopes.items():
        far = (found[name] - value).norm() / value.norm().clamp(min=1e-3)
        assert far < 1e-2, name
    rough, found = gradients(fresh(), "cuda", in_halves())
    for name, value in expected.items():
        assert rough[name].dtype == torch.float32
        torch.testing.assert_close(rough[name], value, rtol=0.1, atol=0.1, msg=name)
    assert all(bool(slope.isfinite().all()) for slope in found.values())
    treecrf.raise_pending()


@pytest.mark.parametrize("how", [nullcontext, in_halves])
def test_a_sentence_alone_and_in_any_batch(folder, how):
    model = make_model(folder).cuda().eval()
    close = 1e-3 if how is nullcontext else 0.2  # scores have a standard deviation of 1
    with torch.inference_mode(), how():
        together = model(model.collate_words(tiny.SENTENCES).to("cuda"))
        for b, sentence in enumerate(tiny.SENTENCES):
            alone = model(model.collate_words([sentence]).to("cuda"))
            n = len(sentence.words)
            cells = torch.ones(n + 1, n + 1, device="cuda").triu(1).bool()
            far = (together.mention[b, : n + 1, : n + 1] - alone.mention[0])[cells]
            assert far.abs().max() < close
            assert alone.mention.dtype == torch.float32


@pytest.mark.parametrize(
    "changes",
    [["decoding.threshold=0.1"], ["decoding.method=viterbi", "decoding.threshold=0"]],
    ids=["marginals", "tree"],
)
def test_entities_are_those_of_a_cpu_whatever_the_batches(folder, changes, monkeypatch):
    monkeypatch.setattr(sentences, "autocast", lambda device: nullcontext())
    given = tiny.SENTENCES * 5
    model = make_model(folder, "default", "decoding.non_entity_bias=-1", *changes).eval()
    expected = predict(model, given)
    assert any(sentence.entities for sentence in expected)
    model.cuda()
    for words in (1, 20, 4000):
        found = predict(model, given, batch_words=words)
        same = sum(a.entities == b.entities for a, b in zip(found, expected, strict=True))
        assert same >= len(given) - 1  # a probability may lie just beside the threshold


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("recipe", ["default", "ablation/02-unstructured-two-stage", "ablation/03-tree-one-stage"])
def test_an_update_waits_for_nothing(patient, recipe):
    model = make_model(patient, recipe).cuda().train()
    moving = torch.optim.AdamW(model.parameters(), fused=True)
    batch = model.collate(tiny.SENTENCES).pin_memory()

    def update():
        moving.zero_grad(set_to_none=True)
        with in_halves():
            losses = model.losses(batch.to("cuda"))
        (losses.total / losses.mentions).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        moving.step()
        return losses.total.detach()

    before = update()  # kernels are compiled
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")  # whatever waits raises
        after = update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert after.isfinite()
    assert after != before, "it was an update"


def test_training_learns_and_can_be_resumed(folder, tmp_path):
    changes = ["training.epochs=40", "training.batch_words=20", "training.rho=1"]
    settings = tiny.settings("default", f"encoder.path={folder}", *changes)
    data = make_corpus(tiny.DOCUMENTS, tiny.DOCUMENTS, seed=1)
    whole = fit(settings, data, tmp_path / "whole", device="cuda")
    assert whole.evaluation.entities.f1 > 0.8

    class Interrupting(Callbacks):
        def epoch(self, end):
            if end.epoch == 3:
                signal.raise_signal(signal.SIGTERM)

    parted = fit(settings, data, tmp_path / "parted", device="cuda", callbacks=Interrupting())
    assert parted.why == "interrupted"
    again = fit(settings, data, tmp_path / "parted", device="cuda", resume=True)
    assert again.epochs == whole.epochs
    assert again.evaluation.entities.f1 > 0.8
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "parted")
    assert a.keys() == b.keys()


@pytest.mark.parametrize("family", ["bert", "mpnet", "roberta"])
@pytest.mark.parametrize("places", [7, 16, 61])
def test_attention_is_one_operation(tmp_path, monkeypatch, family, places):
    monkeypatch.setattr(bert, "CUDA_ATTENTION", [SDPBackend.EFFICIENT_ATTENTION])  # else PyTorch raises
    network = load_pretrained(str(tiny.encoder(tmp_path, family))).cuda().train()
    subwords = torch.randint(5, 40, (3, places), device="cuda")
    mask = torch.ones_like(subwords, dtype=torch.bool)
    mask[1, places // 2 :] = False
    with in_halves():
        states = network(subwords, mask, 1, bert.Bf16WeightCache(bert.stays_float32).weights(network))
    states[0].sum().backward()
    assert network.get_input_embeddings().weight.grad.isfinite().all()


def updater_of(model: Recognizer, data) -> GradientStep:
    return GradientStep(model, data.train, make_accelerator("cuda"), model.settings, Progress(""))


@pytest.mark.parametrize("recipe", ["default", "ablation/03-tree-one-stage", "ablation/07-lexical-yes-no"])
@pytest.mark.parametrize("family", ["bert", "mpnet", "roberta"])
def test_graphs_compute_the_same(tmp_path, family, recipe, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "USES_BEFORE_CAPTURE", 0)
    data = make_corpus(tiny.DOCUMENTS, tiny.DOCUMENTS, seed=1)

    def fresh(*changes):
        quiet = ["encoder.dropout=0", "model.dropout=0", "training.rho=0.1", "training.perturbation=sam"]
        model = make_model(tiny.encoder(tmp_path, family), recipe, *quiet, *changes).cuda().train()
        model.encoder.transformer.config.hidden_dropout_prob = 0.0
        model.encoder.transformer.config.attention_probs_dropout_prob = 0.0
        return updater_of(model, data)

    plain, captured = fresh("training.cuda_graphs=false"), fresh("training.cuda_graphs=true")
    assert plain.graphs is None
    for number, update in enumerate([[[*range(8)]], [[0, 1, 2]], [[*range(8)]], [[2, 3], [4, 5, 6, 7]]], 1):
        values, others = (updater.gradients(update, number) for updater in (plain, captured))
        for name in values:
            torch.testing.assert_close(others[name], values[name], rtol=1e-2, atol=1e-2, msg=name)
        for one, two in zip(plain.parameters, captured.parameters, strict=True):
            assert (one.grad - two.grad).norm() <= 0.05 * one.grad.norm() + 1e-4
        with torch.no_grad():  # as an optimizer does
            for one, two in zip(plain.parameters, captured.parameters, strict=True):
                one -= 0.1 * one.grad
                two.copy_(one)
    treecrf.raise_pending()
    assert 1 <= len(captured.graphs.graphs) <= 4


def test_dropout_of_graphs_follows_from_the_seed(patient, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "USES_BEFORE_CAPTURE", 0)
    model = make_model(patient, "default", "training.cuda_graphs=true", "training.rho=0").cuda().train()
    updater = updater_of(model, make_corpus(tiny.DOCUMENTS, tiny.DOCUMENTS, seed=1))

    def loss(number):
        return float(updater.gradients([[*range(8)]], number)["joint"])

    assert loss(1) == loss(1) != loss(2)  # the first of them is captured


def test_distillation_with_graphs(folder, tmp_path):
    changes = ["epochs=20", "batch_words=60", "cuda_graphs=true", "rho=0.1"]
    changes = [f"training.{change}" for change in changes]
    teacher = tiny.learned(folder, updates=60).cuda()
    labelled = make_corpus(tiny.DOCUMENTS[:1], tiny.DOCUMENTS, seed=1)
    as_they_are = {"labeled_copies": 1, "augmentation_rate": 0}
    data, lessons = distill.make_teachers(labelled, tiny.SENTENCES * 8, [teacher], **as_they_are)
    settings = tiny.settings("default", f"encoder.path={folder}", *changes)
    result = fit(settings, data, tmp_path / "student", device="cuda", teachers=lessons)
    expected = predict(teacher, tiny.SENTENCES)
    found = predict(checkpoint.load(result.folder, "cuda"), tiny.SENTENCES)
    assert evaluate(expected, found, resamples=0).entities.f1 > 0.8


def test_where_memory_is_short_there_are_fewer_graphs(folder, monkeypatch):
    """Real graphs, and memory that really ends while one is captured."""
    monkeypatch.setattr(cuda_graphs, "USES_BEFORE_CAPTURE", 0)
    many = tiny.DOCUMENTS * 40
    model = make_model(folder, "default", "training.cuda_graphs=true", "training.rho=0").cuda().train()
    updater = updater_of(model, make_corpus(many, many, seed=1))
    updater.gradients([[*range(4)]], 1)
    assert len(updater.graphs.graphs) == 1
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / total)
        updater.gradients([[*range(len(many))]], 2)
        updater.gradients([[*range(4)]], 3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert updater.graphs is None or updater.graphs.max_graphs <= 1  # no more of them, or none at all
    assert all(bool(p.grad.isfinite().all()) for p in updater.parameters)
    treecrf.raise_pending()
