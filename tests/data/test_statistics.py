"""Statistics: counted by hand on small data, and against a plain double loop."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data import statistics
from nestree.data.formats import read
from nestree.types import Document, Entity, Sentence
from tests.data.formats.reading import COUNTED
from tests.tiny import any_entity


def test_every_number_of_a_file_counted_by_hand():
    found = statistics.count(read(COUNTED))
    assert statistics.as_json({"": found})[""] == {
        "documents": 3,
        "sentences": 5,
        "nested_sentences": 3,  # a-1, b-2, c-1; the two Rome of a-2 are one entity given twice
        "entities": 12,  # 3 + 3 + 0 + 4 + 2
        "nested_entities": 8,  # 3 of a-1; of b-2 all but 2-5, which only crosses; both of c-1
        "single_word_entities": 6,  # California twice, Paris, Rome twice, Iraqi
        "multi_type_spans": 2,  # California, Ann Lee
        "duplicate_entities": 1,
        "crossing_pairs": 1,  # 0-3 and 2-5 of b-2
        "deepest": 2,  # Iraqi, in Iraqi army, in Iraqi army leaders
        "words": 19,
        "longest_sentence": 5,
        "longest_entity": 4,
        "labels": {"ORG": 3, "GPE": 5, "LOC": 1, "PER": 3},
    }


def is_nested(entity: Entity, others: list[Entity]) -> bool:
    return any(
        (o.start <= entity.start and entity.end <= o.end) or (entity.start <= o.start and o.end <= entity.end)
        for o in others
        if (o.span, o.label) != (entity.span, entity.label)
    )


@settings(max_examples=200)
@given(st.lists(any_entity(), max_size=8))
def test_nested_is_what_a_double_loop_says(found):
    assert statistics.in_nesting(found) == [is_nested(entity, found) for entity in found]


def test_statistics_of_parts_add_up():
    documents = list(read(COUNTED))
    parts = [statistics.count(documents[:1]), statistics.count(documents[1:])]
    assert parts[0] + parts[1] == statistics.count(documents)
    halves = [Document([s], id=d.id) for d in documents for s in d.sentences]  # by sentence
    parts = (statistics.count([half]) for half in halves)
    assert sum(parts, statistics.Statistics()) == statistics.count(documents)


def test_the_table_has_a_column_for_each_part_and_one_for_all():
    part = statistics.count([Document([Sentence(["Rome"], [Entity(0, 1, "GPE|<b>")])])])
    text = statistics.as_text({"train": part, "dev": part}).splitlines()
    assert text[0].split() == ["train", "dev", "all"]
    assert [line.split() for line in text if "GPE" in line] == [["GPE|<b>", "1", "1", "2"]]
    assert not any(line.startswith("documents") for line in text)  # it names none
    assert len({len(line) for line in text if line[-1].isdigit()}) == 1
    long = statistics.count([Document([Sentence(["w"] * 1200)])])
    assert ["words", "1,200"] in [line.split() for line in statistics.as_text({"train": long}).splitlines()]

    marked = statistics.as_markdown({"train": part}).splitlines()
    assert marked[0] == "|  | train |"
    assert r"| &nbsp;&nbsp;GPE\|\<b> | 1 |" in marked
    assert {line.replace(r"\|", "").count("|") for line in marked} == {3}


def test_the_table_of_many_parts_has_one_column_for_all():
    part = statistics.count([Document([Sentence(["a"] * 3)])])
    text = statistics.as_text({f"part-{number}": part for number in range(13)}).splitlines()
    assert text[0].split() == ["all"]
    assert ["words", "39"] in [line.split() for line in text]
