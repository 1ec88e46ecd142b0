"""The whole model, on a tiny encoder: it learns, it does not care for its batch, and odd sentences are no trouble."""

from dataclasses import replace

import pytest
import torch

from nestree.config import recipe_names
from nestree.errors import ModelError
from nestree.model import Recognizer
from nestree.types import Entity, Sentence, crossing_pairs
from tests import tiny
from tests.tiny import sentence, write_text

ROWS = recipe_names()
KINDS = ["default", "paper", "ablation/01-unstructured-one-stage", "ablation/05-tree-two-stage", "release"]


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices are so small here that threads only wait for each other."""
    torch.set_num_threads(1)


def keys(entities) -> set[tuple[int, int, str]]:
    return {(e.start, e.end, e.label) for e in entities}


def memorize(model: Recognizer, sentences: list[Sentence], steps: int = 150) -> int | None:
    """After how many steps is everything right? None: not within so many."""
    own = list(model.encoder.transformer.parameters())
    rest = [p for p in model.parameters() if p.requires_grad and all(p is not q for q in own)]
    rates = model.settings.training
    groups = [{"params": own, "lr": rates.encoder_lr}, {"params": rest, "lr": rates.lr}]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
    batch = model.collate(sentences)
    for step in range(1, steps + 1):
        model.train()
        losses = model.losses(batch)
        optimiser.zero_grad()
        (losses.total / max(1, losses.mentions)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        if step % 5 == 0:
            model.eval()
            if [*map(keys, model.decode(batch))] == [keys(s.entities) for s in sentences]:
                return step
    return None


@pytest.mark.parametrize("recipe", [recipe for recipe in ROWS if "/" in recipe])
def test_every_row_memorises_eight_nested_sentences(tiny_encoder, recipe):
    model = tiny.model(tiny_encoder, recipe)
    # Without parsing, spans decide that no likely tree contains, which trees do not teach. Short sentences have none.
    sentences = tiny.SHORT if recipe == "ablation/08-without-parsing" else tiny.SENTENCES
    assert memorize(model, sentences) is not None
    for entities in model.decode(model.collate_words(tiny.SENTENCES)):
        assert model.settings.decoding.method == "spans" or crossing_pairs(entities) == []
        lexical = model.settings.model.structure == "lexical"
        assert all((e.head is not None and e.start <= e.head < e.end) == lexical for e in entities)


@pytest.mark.parametrize(
    ("recipe", "change"),
    [("ablation/06-lexical-two-stage", "loss.label=sigmoid"), ("paper", "encoder.lstm_layers=1")],
)
def test_two_stage_models_give_two_labels_to_one_span(tiny_encoder, recipe, change):
    assert memorize(tiny.model(tiny_encoder, recipe, change), [tiny.TWO_LABELS, tiny.SENTENCES[0]]) is not None


@pytest.mark.parametrize("recipe", KINDS)
def test_a_sentence_alone_and_in_any_batch(tiny_encoder, recipe):
    model = tiny.model(tiny_encoder, recipe, seed=1).double().eval()
    long = sentence("the fans of the club in the north of Oslo sang of the Bank " * 2)
    sentences = [*tiny.SENTENCES, long]
    whole = in_double(model, sentences)
    together = model(whole)
    entities = model.decode(whole)
    for b, each in enumerate(sentences):
        batch = in_double(model, [each])
        alone, n = model(batch), len(each.words)
        post = torch.arange(n + 1)
        inside = post[:, None] < post
        torch.testing.assert_close(alone.mention[0][inside], together.mention[b, : n + 1, : n + 1][inside])
        if alone.arc is not None:
            apart = ~torch.eye(n, dtype=torch.bool)
            torch.testing.assert_close(alone.arc[0][apart], together.arc[b, :n, :n][apart])
            torch.testing.assert_close(alone.root[0], together.root[b, :n])
        assert model.decode(batch) == [entities[b]]


def in_double(model: Recognizer, sentences: list[Sentence]):
    batch = model.collate(sentences)
    return replace(batch, pooling_weights=batch.pooling_weights.double())


@pytest.mark.parametrize("recipe", ["default", "ablation/03-tree-one-stage", "ablation/06-lexical-two-stage"])
def test_losses_of_a_batch_are_the_sum_of_those_of_its_sentences(tiny_encoder, recipe):
    model = tiny.model(tiny_encoder, recipe).double().eval()

    batches = [tiny.SENTENCES, *([sentence] for sentence in tiny.SENTENCES)]
    together, *alone = (model.losses(in_double(model, sentences)) for sentences in batches)
    assert together.mentions == sum(each.mentions for each in alone) == 18
    torch.testing.assert_close(together.total, torch.stack([each.total for each in alone]).sum())


WHOLE = sentence("the Bank of Portugal", "0-4 ORG")
ODD = {
    "one word": [sentence("Lisbon", "0-1 GPE")],
    "one word, no entity": [sentence("rain")],
    "no entities anywhere": [sentence("it rained"), sentence("all night")],
    "a whole sentence": [WHOLE],
    "two labels on one span": [tiny.TWO_LABELS],
    "every word and everything": [
        sentence("a b c d", "0-1 GPE", "1-2 GPE", "2-3 GPE", "3-4 GPE", "0-2 ORG", "0-3 ORG", "0-4 ORG")
    ],
    "words without subwords": [Sentence(["a", "\u200b", "\x00", "b"], [Entity(1, 2, "GPE"), Entity(0, 4, "ORG")])],
    "unknown letters": [Sentence(["東京", "and", "Москва"], [Entity(0, 1, "GPE")])],
    "a monstrous word": [Sentence(["x" * 900, "b"], [Entity(0, 1, "GPE")])],
    "crossing entities": [sentence("a b c d", "0-3 GPE", "1-4 ORG"), WHOLE],
    "nothing but crossing entities": [sentence("a b c d", "0-3 GPE", "1-4 ORG")],
    "not all annotated": [replace(WHOLE, complete=False)],
    "the same twice": [WHOLE, WHOLE],
    "an entity twice": [sentence("a b", "0-1 GPE", "0-1 GPE")],
}


@pytest.mark.parametrize("recipe", KINDS)
def test_odd_sentences(tiny_encoder, recipe):
    model = tiny.model(tiny_encoder, recipe)
    for sentences in ODD.values():
        batch = model.collate(sentences)
        model.train().zero_grad()
        losses = model.losses(batch)
        losses.total.backward()
        assert bool(losses.total.isfinite())
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        found = model.eval().decode(batch)
        assert len(found) == len(sentences)


def test_every_parameter_learns(tiny_encoder):
    """Each has a gradient: nothing is made and then left out, and a process with others never waits."""
    for recipe in ROWS:
        model = tiny.model(tiny_encoder, recipe, "encoder.lstm_layers=1")
        model.losses(model.collate([sentence("it rained")])).total.backward()
        unused = [name for name, p in model.named_parameters() if p.grad is None]
        assert all("pooler" in name for name in unused), recipe


def test_the_form_of_an_encoder_is_saved_and_comes_back(tiny_encoder, tmp_path):
    vectors = write_text(tmp_path / "vectors.txt", "lisbon 1 2 3\nthe 4 5 6\n")
    model = tiny.model(tiny_encoder, "default", f"encoder.word_vectors={vectors}").eval()
    model.save_encoder(tmp_path / "saved")
    vectors.unlink()  # not needed again
    again = Recognizer(model.settings, model.labels, tmp_path / "saved", pretrained=False).eval()
    again.load_state_dict(model.state_dict())
    batch = model.collate(tiny.SENTENCES)
    assert torch.equal(model(batch).mention, again(again.collate(tiny.SENTENCES)).mention)
    (tmp_path / "saved" / "words.json").unlink()
    with pytest.raises(ModelError, match=r"words\.json: the words of the static vectors cannot be read"):
        Recognizer(model.settings, model.labels, tmp_path / "saved", pretrained=False)


def test_what_is_wrong_is_said(tiny_encoder, tmp_path):
    with pytest.raises(ModelError, match="at least one, and each only once"):
        tiny.model(tiny_encoder, labels=["A", "A"])
    with pytest.raises(ModelError, match=r"encoder\.mix_layers is 4, and the encoder has 3"):
        tiny.model(tiny_encoder, "default", "encoder.mix_layers=4")
    with pytest.raises(ModelError, match=r"encoder .*no tokenizer found; in this folder"):
        tiny.model(tmp_path)
    model = tiny.model(tiny_encoder)
    with pytest.raises(ModelError, match="0-1 XYZ of this sentence has a label that the model does not know"):
        model.collate([sentence("a b", "0-1 XYZ")])
    assert len(model.collate_words([sentence("a b", "0-1 XYZ")])) == 1
    with pytest.raises(ModelError, match="no gold entities; make it with collate"):
        model.losses(model.collate_words(tiny.SENTENCES))
    with pytest.raises(ModelError, match="at least one sentence"):
        model.collate([])


def test_the_head_prior_finds_heads(tiny_encoder):
    """Words that are entities by themselves head larger ones, wherever trees have their heads; others do not."""
    adjectives, nouns = ("old", "new", "big", "red"), ("mayor", "queen", "city", "port")
    data = [sentence(f"{a} {noun}", "0-2 PER") for a in adjectives for noun in nouns]
    data += [sentence(f"{noun} slept", "0-1 PER") for noun in nouns] * 12
    data += [sentence(f"{a} slept") for a in adjectives] * 12
    model = tiny.model(tiny_encoder, "default", "loss.head_sharing_penalty=0", seed=1)
    batch = tiny.train(model, data, 80, 3e-3).collate_words(data[:16])
    scores = model(batch)
    weights = ["decoding.head_prior_weight=50.0"], ["decoding.head_prior_weight=0.0"]
    much, none = map(model.settings.with_overrides, weights)
    found = model.decode_scores(scores, settings=much).entities
    assert set(found[found[:, 2] == 2, 4].tolist()) == {1}
    assert int((found[:, 2] == 2).sum()) == 16
    without = model.decode_scores(replace(scores, head_prior=None), settings=much).entities
    assert torch.equal(model.decode_scores(scores, settings=none).entities, without)


@pytest.mark.filterwarnings("ignore:mkldnn")  # of processors without bfloat16
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_forms_are_in_float32_whatever_the_encoder_is_in(tiny_encoders, family):
    model = tiny.model(tiny_encoders(family))
    batch = model.collate(tiny.SENTENCES)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.encoder.lexical_embeddings(batch).dtype == torch.float32
        model.losses(batch).total.backward()
    assert model.head_prior.out.weight.grad.norm() > 0
