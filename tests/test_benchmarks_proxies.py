"""The proxy data sets have the parts and labels that they should, and come out the same each time."""

from benchmarks import proxies
from nestree.data.formats import read, write
from nestree.types import Document, Entity, Sentence

ARTICLE = """<article><articleinfo><bibliomisc>MEDLINE:{0}</bibliomisc></articleinfo><title>
<sentence><cons lex="a" sem="G#protein_molecule">Act{0}</cons> and <cons lex="b" sem="G#virus">HIV</cons></sentence>
</title></article>"""


def entity(named, head):
    return Entity(head, head + 1, "person", head, extra={"infstat": "new", "named": named})


def test_proxies(tmp_path):
    shared = tmp_path / "shared"
    (shared / "raw" / "genia_gpml").mkdir(parents=True)
    xml = f"<set>{''.join(map(ARTICLE.format, range(20)))}</set>"
    (shared / "raw" / "genia_gpml" / "a.xml").write_text(xml)
    extra = {"upos": ["PROPN", "VERB", "PRON"]}
    sentence = Sentence(["Ann", "saw", "her"], [entity(True, 0), entity(False, 2)], extra=extra)
    documents = [
        Document((sentence,) * 4, id=f"GUM_{genre}_x") for genre in ("academic", "bio", "conversation")
    ]
    for source in ("genia", "litbank", "gum_open"):
        (shared / source).mkdir()
        for part in proxies.PARTS:
            write(documents, shared / source / f"{part}.jsonl.gz", "jsonl")
    proxies.main([str(shared), str(tmp_path / "one")])
    proxies.main([str(shared), str(tmp_path / "two")])
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.gz"))
    assert len(files) == 3 * 8
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)

    def sentences(name, part):
        return [s for d in read(tmp_path / "one" / name / f"{part}.jsonl.gz") for s in d.sentences]

    def labels(name):
        return {e.label for s in sentences(name, "train") for e in s.entities}

    assert [len(sentences("genia-fine", part)) for part in proxies.PARTS] == [14, 3, 3]
    assert labels("genia-fine") == {"protein_molecule", "virus"}
    assert [len(sentences("gum-fifth", part)) for part in proxies.PARTS] == [3, 12, 12]
    assert len(sentences("gum-fine", "train")) == 6
    assert labels("gum-fine") == {"person:PROPN", "person:PRON", "name"}
    assert labels("gum-two-labels") == {"person", "new"}
    ids = {
        part: {d.id for d in read(tmp_path / "one" / "gum-without-academic" / f"{part}.jsonl.gz")}
        for part in proxies.PARTS
    }
    assert ids["train"] == ids["dev"] == {"GUM_bio_x", "GUM_conversation_x"}
    assert ids["test"] == {"GUM_academic_x"}
    assert len(sentences("gum-without-academic", "test")) == 12
