"""PubTator: title and abstract as one text, offsets compared, relations counted."""

from nestree.types import Document, Entity, Sentence

from .reading import documents, phrases, write


def test_articles_are_read_and_the_title_is_a_sentence_of_its_own():
    (fever, gene), report = documents("tools/pubtator.txt")
    assert fever.id == "111"
    title = "Rome fever in children of Rome"
    assert fever.text == f"{title}\nThe Rome fever (malaria) was common. It is rare now."
    assert [" ".join(s.words) for s in fever.sentences] == [
        "Rome fever in children of Rome",
        "The Rome fever ( malaria ) was common .",
        "It is rare now .",
    ]
    assert [sorted(phrases(s)) for s in fever.sentences] == [
        [("Rome", "Place"), ("Rome", "Place"), ("Rome fever", "Disease"), ("children of Rome", "Group")],
        [("Rome fever", "Disease"), ("malaria", "Disease")],
        [],
    ]
    composite = next(e for e in fever.sentences[1].entities if e.start == 1)
    assert composite.extra == {"id": "D008288", "mentions": "Rome fever|fever"}
    assert gene.text == "No | abstract: α-Synuclein"
    assert phrases(gene.sentences[0]) == [("α-Synuclein", "Gene")]
    assert report.counts == {"relations not read": 1}


def test_written_offsets_hold_and_what_is_changed_is_counted(tmp_path):
    text = "Rome\tfever\r\n in\nRome 🙂"
    entities = [Entity(0, 2, "D", head=1, extra={"id": "M1", "other": 1}), Entity(1, 5, "A\tB", score=0.5)]
    offsets = ((0, 4), (5, 10), (13, 15), (16, 20), (21, 22))
    sentence = Sentence(["Rome", "fever", "in", "Rome", "🙂"], [*entities, Entity(4, 5, "E")], text, offsets)
    report = write([Document((sentence,), text, "a|b", {"k": 1}), Document(())], tmp_path / "a", "pubtator")
    assert (tmp_path / "a").read_text(encoding="utf-8") == (
        "a_b|t|Rome\tfever\n"
        "a_b|a|  in Rome 🙂\n"
        "a_b\t0\t10\tRome fever\tD\tM1\n"
        "a_b\t5\t22\tfever   in Rome 🙂\tA B\t\n"
        "a_b\t21\t22\t🙂\tE\t\n"
        "\n2|t|\n2|a|\n\n"
    )
    assert {what: times for what, times in report.counts.items() if "not written" not in what} == {
        "ids changed: pubtator cannot hold spaces and | in them": 1,
        "ids generated: pubtator needs one": 1,
        "line ends written as blanks: pubtator cannot hold them": 1,
        "labels changed: pubtator has no place for tabs and line ends in them": 1,
    }
    (back, empty), _ = documents(tmp_path / "a", "pubtator", words="whitespace")
    assert [(s.words, [(e.span, e.label) for e in s.entities]) for s in back.sentences] == [
        (sentence.words, [((0, 2), "D"), ((1, 5), "A B"), ((4, 5), "E")])
    ]
    assert empty.sentences == ()
