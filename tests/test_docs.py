"""The documentation is true: its examples run, its links lead somewhere, its pictures are up to date."""

import doctest
import importlib.util
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest
import typer

from benchmarks import training
from nestree.cli import app
from tests.conftest import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"\d*\.\d+")


class Checker(doctest.OutputChecker):
    """Accepts slightly different probabilities: some processors use int8."""

    def check_output(self, want, got, flags):
        if super().check_output(want, got, flags):
            return True
        numbers = [list(map(float, NUMBER.findall(text))) for text in (want, got)]
        same = super().check_output(NUMBER.sub("#", want), NUMBER.sub("#", got), flags)
        return same and numbers[0] == pytest.approx(numbers[1], abs=0.03)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    text = page.read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, page.name, str(page), 0)
    assert doctest.DocTestRunner(Checker(), optionflags=flags).run(examples).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target
            there = page.parent / target if target else page
            assert not anchor or anchor in anchors_of(there), f"{target}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pictures_are_up_to_date():
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    for name, draw in pictures.PICTURES.items():
        stored, drawn = (ROOT / "docs" / name).read_text(encoding="utf-8"), draw()
        assert NUMBER.sub("#", stored) == NUMBER.sub("#", drawn), "run: python docs/pictures.py"
        numbers = [list(map(float, NUMBER.findall(text))) for text in (stored, drawn)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.011)  # probabilities may be rounded differently


def test_architecture_lists_every_file_and_names_functions_that_exist():
    layout = ARCHITECTURE.split("```")[1]
    named, folder = set(), Path()
    for line in layout.strip().splitlines():
        if not line.startswith(" "):
            folder = Path(line.split()[0])
            named.add(folder / "__init__.py")
        else:
            named |= {folder / name for name in re.match(r" +((?:\w+\.py ?)+)", line)[1].split()}
    assert named == {path.relative_to(ROOT) for path in (ROOT / "nestree").rglob("*.py")}
    named = re.findall(r"nestree/[\w/]+\.py", ARCHITECTURE)
    assert [name for name in named if not (ROOT / name).exists()] == []
    walks = ARCHITECTURE.split("## The three walks")[1]
    names = re.findall(r"`(\w+(?:\.\w+)+)`", walks)
    assert len(names) > 40
    for name in names:
        pkgutil.resolve_name(f"nestree.{name}")  # raises if there is no such module or attribute


# Bash expands the arguments of a block and calls these instead of the programs; there are no others on its PATH.
ECHO = (
    'nestree() { { printf "%s\\0" nestree "$@"; printf "\\n"; } >&3; }; python() { shift; nestree "$@"; }; exec 3>&1\n'
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_these_options(page, tmp_path):
    program = typer.main.get_command(app)
    for block in re.findall(r"^```(?:ba)?sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        script = ["/bin/bash", "-c", ECHO + re.sub(r"^\$ ", "", block, flags=re.MULTILINE)]
        called = subprocess.run(script, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True).stdout
        for line in called.splitlines():
            _, name, *arguments = line.split("\0")[:-1]
            if name == "benchmarks.training":
                assert training.make_jobs(training.parse_arguments(arguments))
            elif not name.startswith("benchmarks.") and "Error: " not in block:
                options = [option for p in program.commands[name].params for option in [*p.opts, *p.secondary_opts]]
                assert {a for a in arguments if a.startswith("-") and a != "-"} <= {*options}, line
