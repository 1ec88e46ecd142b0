"""Reports: the numbers of an evaluation, as people and programs read them."""

import json
import re
from datetime import date
from html import unescape

import pytest
from hypothesis import given, settings
from rich.console import Console

import nestree
from nestree.evaluation import compare, evaluate
from nestree.report import to_html, to_json, to_markdown, to_terminal
from nestree.report.tables import group_table
from nestree.types import Entity, Sentence
from tests.evaluation.cases import GOLD, PREDICTED, predictions
from tests.show.cases import check_page, contrast, css_colors

PERFECT = Sentence(GOLD.words, [Entity(e.start, e.end, e.label, e.head, score=0.9) for e in GOLD.entities])


@pytest.fixture(scope="module")
def example():
    return evaluate([GOLD], [PREDICTED], resamples=0)


@pytest.fixture(scope="module")
def comparison():
    return compare([GOLD], [PERFECT], [PREDICTED], names=("ours.jsonl", "their_model.jsonl"), swaps=100)


@pytest.fixture(scope="module")
def hostile():
    """Labels, words and ids that mean something to terminals, Markdown and HTML; many labels, and long ones."""
    labels = ["<script>alert(1)</script>", "a|b", "*x*", "国" * 30]
    labels += [f"a_very_long_label_{k}" for k in range(30)]
    words = ["&amp;", "\x1b[31mred", "\ud800", '"><img src=x>', "`code`", "end"]
    sentences = [
        (
            Sentence(words, [Entity(0, 6, label), Entity(2, 5, label, head=3)], id="</title>"),
            Sentence(words, [Entity(0, 5, label), Entity(2, 5, label, head=4), Entity(1, 3, labels[k - 1])]),
        )
        for k, label in enumerate(labels)
    ]
    gold, predicted = zip(*sentences, strict=True)
    return compare(gold, predicted, gold, names=("<b>", "|"), resamples=20, swaps=20)


def render_terminal(*parts, width=80):
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as page:
        console.print(*parts, sep="\n")
    return page.get()


def test_a_group_without_predictions_is_not_drawn_as_zero():
    words = ["a", "b"]
    gold = [Sentence(words, [Entity(0, 2, "A"), Entity(0, 1, "B")])]
    found = evaluate(gold, [Sentence(words, [Entity(0, 1, "B"), Entity(1, 2, "C")])], resamples=20)
    rows = {row[0]: row[1:4] for row in group_table("By label", "label", found.labels).rows}
    assert rows == {"A": ("-", "0.00", "0.00"), "B": ("100.00",) * 3, "C": ("0.00", "-", "0.00")}
    chart = re.findall(r'class="track">\n(.*?)</div><div class="value">(.*?)<', to_html(found), re.S)[:3]
    drawn = [(*re.findall("no prediction|not in gold", track), value) for track, value in chart]
    assert drawn == [("100.00",), ("no prediction", "0.00"), ("not in gold", "0.00")]
    assert found.macro_f1 == pytest.approx(1 / 3)
    assert "labels that are not in gold count with an F1 of 0" in to_markdown(found)


EXPECTED = """\
a.jsonl
1 sentence, 6 gold entities, 6 predicted.

Scores
                        P      R     F1  correct  predicted  gold
entities            50.00  50.00  50.00        3          6     6
duplicates counted  50.00  42.86  46.15        3          6     7
spans only          66.67  66.67  66.67        4          6     6
macro average                     43.33

By label
label      P       R     F1  correct  predicted  gold
PER    66.67  100.00  80.00        2          3     2
GPE    50.00   50.00  50.00        1          2     2
ORG     0.00    0.00   0.00        0          1     2

By depth
depth        P       R      F1  correct  predicted  gold
0       100.00  100.00  100.00        2          2     2
1         0.00    0.00    0.00        0          3     2
2       100.00   50.00   66.67        1          1     2
nested   50.00   50.00   50.00        3          6     6
Depth: how many other spans enclose an entity. Nested: inside or around another
entity, or on its span; flat: the others. Predicted entities that are gold are
grouped as in gold, the others as in the prediction.

By length
words       P       R      F1  correct  predicted  gold
1       50.00   50.00   50.00        1          2     2
2        0.00    0.00    0.00        0          1     1
3       50.00  100.00   66.67        1          2     1
4           -    0.00    0.00        0          0     1
6-10   100.00  100.00  100.00        1          1     1

Errors
                errors  % gold  % pred.  meaning
wrong type           1   16.67    16.67  right span, wrong label
wrong boundary       1   16.67    16.67  right label, overlapping span
missed               1   16.67           other gold entities, not predicted
spurious             1            16.67  other predicted entities, not gold

Errors by label
label  gold  correct  type  boundary  missed  spurious
PER       2        2     0         0       0         1
GPE       2        1     0         0       1         0
ORG       2        0     1         1       0         0
gold = correct + type + boundary + missed, by the label in gold.

Error distribution
predicted \\ gold   GPE   ORG    PER
GPE               50.0  50.0
ORG
PER                           100.0
missed            50.0  50.0
In %, by the label that the same span was predicted with; each column sums to
100.

Heads
                             %   count
head accuracy            66.67  2 of 3
shared heads, predicted  33.33  2 of 6
shared heads, gold        0.00  0 of 6
Accuracy: over predicted spans of several words that are gold spans. Shared:
entities whose head also heads an entity on another span.

Most frequent head words
label  predicted                             gold
PER    army (1), leaders (1), president (1)  leaders (1), president (1)
GPE    California (1), army (1)              California (1), Iraqi (1)
ORG    University (1)                        University (1), army (1)

Examples
wrong type, sentence 1: ORG 'Iraqi army' was predicted as GPE
  gold      … University of [California GPE] met [[[Iraqi GPE] army ORG] leaders
            PER]
  predicted … [University of [California GPE] ORG] met [[Iraqi army GPE]
            [leaders PER] PER]
wrong boundary, sentence 1: ORG 'the University of California' was predicted as
'University of California'
  gold      [The president of [the University of [California GPE] ORG] PER] met
            [[[Iraqi GPE] army ORG] leaders PER]
  predicted [The president of the [University of [California GPE] ORG] PER] met
            [[Iraqi army GPE] [leaders PER] PER]
missed, sentence 1: GPE 'Iraqi' was not predicted
  gold      … University of [California GPE] met [[[Iraqi GPE] army ORG] leaders
            PER]
  predicted … [University of [California GPE] ORG] met [[Iraqi army GPE]
            [leaders PER] PER]
spurious, sentence 1: PER 'leaders' is not gold
  gold      … [California GPE] met [[[Iraqi GPE] army ORG] leaders PER]
  predicted … [California GPE] met [[Iraqi army GPE] [leaders PER] PER]
wrong head, sentence 1: PER 'Iraqi army leaders' has the head 'leaders',
predicted was 'army'
  gold      … University of [California GPE] met [[[Iraqi GPE] army ORG] leaders
            PER]
  predicted … [University of [California GPE] ORG] met [[Iraqi army GPE]
            [leaders PER] PER]
"""


def test_the_terminal_shows_every_number(example, comparison):
    page = render_terminal(*to_terminal(example, title="a.jsonl"))
    assert "\n".join(row.rstrip() for row in page.splitlines()) + "\n" == EXPECTED
    page = render_terminal(*to_terminal(comparison.first, comparison))
    assert "ours.jsonl against their_model.jsonl" in page
    assert re.search(r"^ +ours\.jsonl +their_model\.jsonl +difference +95 % +p", page, re.M)
    assert re.search(r"^F1 +100\.00 +50\.00 +\+50\.00 +\+50\.00 to \+50\.00 +1\.0000", page, re.M)
    assert "Expected calibration error 10.00 %, Brier score 0.0100, over 6 entities." in page
    assert re.search(r"^0\.90 +100\.00 +100\.00 +100\.00", page, re.M)
    assert re.search(r"^0\.95 +- +0\.00 +0\.00", page, re.M)
    assert "permutation test, 100 permutations" in page


def test_lines_stay_within_the_terminal(hostile):
    page = render_terminal(*to_terminal(hostile.first, hostile), width=60)
    assert max(map(len, page.splitlines())) <= 60
    assert "more columns do not fit here" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", page)


def test_markdown_has_the_same_tables_and_no_markup_of_the_data(example, hostile):
    page = to_markdown(example, title="a_b.jsonl")
    assert page.startswith("# a\\_b.jsonl\n\n1 sentence,")
    assert "| duplicates counted | 50.00 | 42.86 | 46.15 | 3 | 6 | 7 |" in page
    assert "    gold      … [California GPE] met [[[Iraqi GPE] army ORG] leaders PER]" in page
    page = to_markdown(hostile.first, hostile)
    assert "a\\|b" in page
    assert "| <script>" not in page
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(cells) == 1
    page.encode("utf-8")


def test_json_holds_the_numbers(example, comparison):
    values = json.loads(json.dumps(to_json(example)))
    counts = {"correct": 3, "predicted": 6, "gold": 6, "intervals": None}
    assert values["entities"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, **counts}
    assert values["errors"] == {"type": 1, "boundary": 1, "missed": 1, "spurious": 1}
    assert values["errors_by_label"]["ORG"] == {"type": 1, "boundary": 1, "missed": 0, "spurious": 0}
    assert values["depths"]["2"]["recall"] == 0.5
    assert values["distribution"]["ORG"] == {"predicted": {"GPE": 0.5}, "missed": 0.5}
    assert values["distribution"]["PER"] == {"predicted": {"PER": 1.0}, "missed": 0.0}
    assert values["heads"]["accuracy"] == 2 / 3
    assert values["heads"]["shared"] == 2
    assert values["heads"]["gold_words"]["GPE"] == [["California", 1], ["Iraqi", 1]]
    assert "comparison" not in values
    values = json.loads(json.dumps(to_json(comparison.first, comparison)))
    assert values["comparison"]["f1"] == {"value": 0.5, "interval": [0.5, 0.5], "p": 1.0}
    assert values["comparison"]["labels"]["ORG"]["value"] == 1.0
    assert values["calibration"]["bins"][0]["entities"] == 6
    assert values["thresholds"]["0.9"]["f1"] == 1.0
    assert values["entities"]["intervals"]["recall"] == [1.0, 1.0]


@pytest.fixture(scope="module")
def pages(example, comparison, hostile):
    return {
        "example": to_html(example),
        "comparison": to_html(comparison.first, comparison, "ours against theirs", {"model": "m"}),
        "hostile": to_html(hostile.first, hostile, "</title><script>"),
    }


@pytest.mark.parametrize("name", ["example", "comparison", "hostile"])
def test_the_page_is_well_formed_and_needs_no_other_files(pages, name):
    assert 'href="#' in pages[name]
    check_page(pages[name])


def test_the_page_shows_scores_charts_and_examples(pages):
    source = pages["example"]
    assert source.count('class="chart"') == 4  # labels, depth, length, errors
    assert "ORG: F1 0.00, P 0.00, R 0.00, 2 gold" in source
    text = unescape(re.sub("<.*?>", " ", source))
    shown = "50.00|GPE 'Iraqi' was not predicted|PER, head leaders|5 of 5 errors|1 are wrong heads"
    for words in shown.split("|"):
        assert words in text
    assert "<svg" not in source
    source = pages["comparison"]
    assert source.count('class="chart"') == 4  # no errors
    assert source.count("<svg") == 2  # reliability and thresholds
    assert "threshold 0.90: P 100.00, R 100.00" in source
    assert "ours.jsonl minus their_model.jsonl" in source
    facts = dict(re.findall(r"<dt>(\w+)</dt> <dd><bdi>(.*?)</bdi>", source))
    assert facts == {
        "model": "m",
        "bootstrap": "1,000 resamples, seed 0",
        "date": date.today().isoformat(),
        "version": f"nestree {nestree.__version__}",
    }


def test_examples_can_be_filtered_and_show_gold_above_the_prediction(pages):
    source = pages["example"]
    assert re.findall('<option class="k-(.*?)"', source) == ["type", "boundary", "missed", "spurious", "head"]
    labels = dict(re.findall(r'<option class="l-(\d)">(\w+)<', source))
    examples = re.findall('<figure class="example (.*?)">', source)
    named = [[labels.get(name[1:], name) for name in names.split()] for names in examples]
    assert ["type-error", "GPE", "ORG"] in named  # gold and predicted label
    assert ["spurious-error", "PER"] in named
    for rule in (".examples:has(.k-type:checked)", ".examples:has(.l-0:checked)"):
        assert rule in source
    border = re.search(r'<figure class="example boundary-error.*?</figure>', pages["example"], re.S)
    rows = re.findall(r'class="([^"]*)" style="grid-area:(\d+)/(\d+)/\d+/(\d+)">([^<]*)<', border[0])
    wrong = [(style.split()[1], *map(int, place), label) for style, *place, label in rows if "wrong" in style]
    words = {int(row) for style, row, *_ in rows if style == "word"}
    assert wrong == [("above", 2, 6, 10, "ORG"), ("below", 6, 7, 10, "ORG")]
    assert words == {4}


def test_the_report_of_nothing():
    empty = evaluate([Sentence(["a"], complete=False)], [Sentence(["a"])])
    assert "1 gold sentence is marked as incomplete" in to_markdown(empty)
    assert "0 gold entities" in render_terminal(*to_terminal(empty))
    assert "entities | - | - | - |" in to_markdown(empty)
    assert re.findall('<section id="(.*?)"', to_html(empty)) == ["scores"]
    json.dumps(to_json(empty))


@settings(max_examples=10)
@given(predictions(sides=3))
def test_any_evaluation_can_be_reported(corpora):
    found = compare(*corpora, resamples=5, swaps=5)
    f1 = f"{100 * found.first.entities.f1:.2f}"
    assert f1 in render_terminal(*to_terminal(found.first, found))
    assert f1 in to_markdown(found.first, found)
    assert json.loads(json.dumps(to_json(found.first, found)))["entities"]["f1"] == found.first.entities.f1
    check_page(to_html(found.first, found))


def test_colors_have_enough_contrast():
    for colors in css_colors("templates/base.css", "report/templates/report.css"):
        for name in ("text", "quiet", "link", "p", "r"):
            assert min(contrast(colors[name], colors[below]) for below in ("page", "panel")) >= 4.5, name
        for name in ("type", "boundary", "missed", "spurious", "f1", "heat-right", "heat-wrong"):
            assert contrast(colors[name], colors["text"]) >= 4.5, name
        for name in ("type", "boundary", "missed", "spurious", "f1"):
            assert contrast(colors[name], colors["page"]) >= 3, name
