"""convert, check, stats and formats, with the arguments that a user gives."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nestree.cli import app
from nestree.cli.runtime import option_values, typed
from nestree.data.formats import FORMATS, read
from nestree.errors import InputError

COUNTED = Path(__file__).parent.parent / "data" / "fixtures" / "commands" / "counted.jsonl"
GOOD = '{"tokens": ["Rome"], "entities": [{"start": 0, "end": 1, "label": "GPE"}]}\n'
BAD = '{"tokens": ["Rome"], "entities": [{"start": 0, "end": 2, "label": "GPE"}]}\n'


def nestree(*arguments: str | Path, **more) -> Result:
    done = CliRunner().invoke(app, [str(each) for each in arguments], **more)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_convert_guesses_formats_and_sums_up(tmp_path):
    done = nestree("convert", COUNTED, tmp_path / "out.iob2")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"12 entities from {COUNTED} (jsonl)" in done.stderr
    assert f"12 entities to {tmp_path / 'out.iob2'} (columns)" in done.stderr
    assert "ids of sentences not written: columns has no place for them" in done.stderr


def test_convert_for_programs(tmp_path):
    done = nestree("convert", COUNTED, tmp_path / "out.jsonl.gz", "--format", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["read"]["format"], said["written"]["format"]) == ("jsonl", "jsonl")
    assert (said["read"]["entities"], said["written"]["entities"]) == (12, 12)
    assert list(read(tmp_path / "out.jsonl.gz")) == list(read(COUNTED))


def test_convert_text_with_its_words(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(json.dumps({"text": "in well-known cafés\nAnn left", "entities": []}))

    def words(*options: str) -> list[tuple[str, ...]]:
        done = nestree("convert", source, tmp_path / "b.jsonl", *options)
        assert done.exit_code == 0, done.stderr
        return [sentence.words for d in read(tmp_path / "b.jsonl") for sentence in d.sentences]

    assert words("--words", "whitespace", "--sentences", "lines") == [
        ("in", "well-known", "cafés"),
        ("Ann", "left"),
    ]
    assert ("in", "well", "-", "known", "cafés") in words("--words", "split-hyphens", "--sentences", "lines")
    assert words("--read", "words=whitespace", "--read", "sentences=lines") == words(
        "--words", "whitespace", "--sentences", "lines"
    )
    for option, said in [
        ("--words", "treebank, ud, split-hyphens, whitespace"),
        ("--sentences", "rules, lines"),
    ]:
        done = nestree("convert", source, tmp_path / "c.jsonl", option, "ptb")
        assert done.exit_code == 2
        assert said in done.stderr


def test_options_of_formats(tmp_path):
    out = tmp_path / "out.data"
    assert nestree("convert", COUNTED, out, "--write", "ends=inclusive").exit_code == 0
    assert "0,3 ORG" in out.read_text()
    again = tmp_path / "again.jsonl"
    assert nestree("convert", out, again, "--read", "ends=inclusive").exit_code == 0
    assert [s.entities for d in read(again) for s in d.sentences] == [
        s.entities for d in read(COUNTED) for s in d.sentences
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--write", "end=inclusive"], "--write end=inclusive: triplets has no such option. Is ends meant?"),
        (["--write", "zzz=1"], "triplets has no such option. It has: ends"),
        (["--write", "ends"], "--write ends has no value: write --write ends=VALUE."),
        (["--write", "ends=open"], "not 'open'"),
        (["--read", "ends=inclusive"], "jsonl has no such option."),
        (["--to", "genia"], "genia can be read, not written."),
        (["--from", "jsnol"], "there is no format 'jsnol'."),
        (["--from", "columns", "--words", "ud"], "--words ud: columns data has its own words."),
        (["--words", "uds"], "--words uds: choose one of treebank, ud, split-hyphens, whitespace."),
        (["--sentences", "line"], "--sentences line: choose one of rules, lines."),
        (["--longest-line", "10"], "longer than 10 bytes"),
        (["--longest-line", "0"], "--longest-line"),
    ],
)
def test_options_that_do_not_fit(tmp_path, arguments, said):
    done = nestree("convert", COUNTED, tmp_path / "out.data", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_values_have_the_type_of_the_option():
    assert option_values(["word=2", "tags=3,4"], "columns", "read") == {"word": 2, "tags": "3,4"}
    with pytest.raises(InputError, match="--read word=two: the value must be a whole number"):
        option_values(["word=two"], "columns", "read")
    assert [typed("yes", bool), typed("0", bool), typed("", str | None), typed("a", Path | None)] == [
        True,
        False,
        None,
        Path("a"),
    ]
    assert (typed("a,b", list[str]), typed("1,2", tuple[int, ...])) == (["a", "b"], (1, 2))
    with pytest.raises(ValueError, match="true or false"):
        typed("maybe", bool)


def test_every_option_of_every_format_can_be_given():
    for name, about in FORMATS.items():
        for verb in ("read", "write") if about.writable else ("read",):
            done = nestree("formats", name, "--format", "json")
            assert done.exit_code == 0
            for option, default in json.loads(done.stdout)[name][verb].items():
                given = "true" if isinstance(default, bool) else str(default or "")
                assert option in option_values([f"{option}={given}"], name, verb)  # type: ignore[arg-type]


def test_formats_are_listed_and_described():
    lines = nestree("formats").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(FORMATS)
    assert ["genia", "read"] in [line.split()[:2] for line in lines]
    said = nestree("formats", "triplets").stdout
    assert "--read ends=exclusive" in said
    assert "inclusive" in said
    assert nestree("formats", "tripels").exit_code == 2


def test_skip_bad_lists_what_it_skipped(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(GOOD + BAD + GOOD + "{\n")
    done = nestree("convert", source, tmp_path / "b.jsonl")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {source}:2: entity 0-2 GPE ends after the sentence")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "b.jsonl").exists()
    done = nestree("convert", source, tmp_path / "b.jsonl", "--skip-bad")
    assert done.exit_code == 0
    assert f"{source}:2: " in done.stderr
    assert f"{source}:4: " in done.stderr
    assert sum(len(d.sentences) for d in read(tmp_path / "b.jsonl")) == 2
    done = nestree("stats", source, "--skip-bad")
    assert "2  skipped:" in done.stderr


def test_standard_output_gets_all_or_nothing(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(GOOD * 100 + BAD)
    done = nestree("convert", source, "-", "--to", "jsonl")
    assert (done.exit_code, done.stdout) == (2, "")
    assert nestree("convert", source, "-", "--to", "brat").exit_code == 2


def test_gzip_on_standard_input():
    done = nestree(
        "stats", "-", "--from", "jsonl", "--format", "json", input=gzip.compress(COUNTED.read_bytes())
    )
    assert json.loads(done.stdout)["-"]["entities"] == 12


def test_check_exits_as_its_findings_say(tmp_path):
    good, bad, odd = (tmp_path / f"{name}.jsonl" for name in ("good", "bad", "odd"))
    good.write_text(GOOD * 2)
    bad.write_text(GOOD + BAD)
    odd.write_text(GOOD)  # a label seen once
    assert (nestree("check", good).exit_code, nestree("check", odd).exit_code) == (0, 0)
    assert nestree("check", odd, "--strict").exit_code == 1
    done = nestree("check", bad)
    assert done.exit_code == 1
    assert f"{bad}:2: entity 0-2 GPE ends after the sentence" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 error and 1 warning in 1 file, 1 sentence, 1 entity."
    done = nestree("check", tmp_path / "none.jsonl", bad)
    assert done.exit_code == 2
    assert "does not exist" in done.stdout
    assert nestree("check", "-q", bad).stdout == "1 error and 1 warning in 1 file, 1 sentence, 1 entity.\n"
    said = json.loads(nestree("check", bad, "--format", "json").stdout)
    assert (said["errors"], said["findings"][0]["kind"]) == (1, "out-of-range")


def test_stats_in_three_shapes():
    table = nestree("stats", COUNTED).stdout
    assert [line.split() for line in table.splitlines()][:3] == [
        ["counted"],
        ["documents", "3"],
        ["sentences", "5"],
    ]
    assert "| sentences | 5 |" in nestree("stats", COUNTED, "--format", "markdown").stdout
    numbers = json.loads(nestree("stats", COUNTED, "--format", "json").stdout)["counted"]
    assert (numbers["entities"], numbers["nested_entities"], numbers["labels"]["GPE"]) == (12, 8, 5)


def test_stats_of_genia_are_those_of_the_paper(shared):
    folder = shared / "data" / "genia_paper"
    done = nestree("stats", *(folder / f"{part}.jsonl.gz" for part in ("train", "dev", "test")))
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()}
    assert rows["sentences"] == ["15,022", "1,669", "1,855", "18,546"]
    assert rows["entities"] == ["46,379", "4,460", "5,596", "56,435"]


def test_a_bar_shows_only_where_somebody_looks_on(tmp_path, monkeypatch):
    from nestree.cli import runtime

    shown = []

    class Bar:
        def __init__(self, total, **_):
            self.n, self.total = 0, total
            shown.append(self)

        def update(self, n):
            self.n += n

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("tqdm.tqdm", Bar)
    with runtime.progress([COUNTED]):
        assert shown == []
    monkeypatch.setattr(sys, "stderr", type("Terminal", (), {"isatty": lambda self: True})())
    with runtime.progress([COUNTED]):
        list(read(COUNTED))
    assert shown[0].n == shown[0].total == COUNTED.stat().st_size
