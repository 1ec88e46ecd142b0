"""A page in a browser: no errors, nothing clipped, and the text that is in the document. Needs Chromium."""

import html
import json
import re
import shutil
import subprocess

import pytest

from nestree.show import draw_boxes, draw_page
from nestree.show.layout import escape_invisible
from nestree.types import Document, Entity, Sentence

from .cases import EVIL, PARSED, PRESIDENT

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)}")

# Measures the page in the browser and writes the results into it, where a test can read them.
PROBE = """<script>
const inside = (a, b) => a.top >= b.top - 1 && a.bottom <= b.bottom + 1 &&
  a.left >= b.left - 1 && a.right <= b.right + 1;
const boxes = [...document.querySelectorAll('.e')];
const texts = [...document.querySelectorAll('.text')].map(text => {
  const copy = text.cloneNode(true);
  copy.querySelectorAll('.label, .to-tree').forEach(element => element.remove());
  return copy.textContent; });
const visible = () => [...document.querySelectorAll('.label i')].filter(
  i => getComputedStyle(i).display != 'none').length;
const before = visible();
document.querySelectorAll('.switch input').forEach(input => input.click());
const results = { texts, before, after: visible(), wide: document.documentElement.scrollWidth <= innerWidth,
  boxes: boxes.length, nested: boxes.every(box => !box.parentElement.closest('.e') ||
    inside(box.getBoundingClientRect(), box.parentElement.closest('.e').getBoundingClientRect())),
  outside: [...document.querySelectorAll('svg text')].filter(t => !inside(t.getBoundingClientRect(),
    t.closest('svg').getBoundingClientRect())).map(t => t.textContent) };
document.body.insertAdjacentHTML('beforeend', '<pre id=results></pre>');
document.getElementById('results').textContent = JSON.stringify(results);
</script>"""


def open_page(folder, source):
    """The browser's console, and the results of PROBE."""
    path = folder / "page.html"
    path.write_text(source, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        f"--user-data-dir={folder}/profile", "--window-size=700,900", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    console = [line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    results = re.search('<pre id="results">(.*?)</pre>', done.stdout.decode(), re.S)
    return console, json.loads(html.unescape(results[1])) if results else None


def test_errors_on_the_console_would_be_seen(tmp_path):
    console, results = open_page(tmp_path, "<script>nothing.here</script>")
    assert len(console) == 1
    assert results is None


def test_a_page_in_a_browser(tmp_path):
    crossing = Document([Sentence(list("abc"), [Entity(0, 2, "X"), Entity(1, 3, "Y", score=0.5)])])
    shown = [PRESIDENT, EVIL, PARSED, crossing]
    console, results = open_page(tmp_path, draw_page(shown, "four") + PROBE)
    assert console == []
    assert results["texts"] == [escape_invisible(document.with_text().text) for document in shown]
    assert results["boxes"] == 3 + 2 + 3 + 3
    assert (results["before"], results["after"]) == (0, 4 + 1 + 4 + 2)
    assert results["nested"]
    assert results["wide"]
    assert results["outside"] == []


def test_boxes_in_a_browser(tmp_path):
    text = "one\r\ntwo\tthree  four"
    words = [
        Sentence([text[i:j] for i, j in at], [Entity(0, 3, "A")], text, at)
        for at in [[(0, 3), (5, 8), (9, 14), (16, 20)]]
    ]
    console, results = open_page(
        tmp_path, f"<!DOCTYPE html><meta charset=utf-8>{draw_boxes(Document(words, text))}{PROBE}"
    )
    assert console == []
    assert results["texts"] == [text]
