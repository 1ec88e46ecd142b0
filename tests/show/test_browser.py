"""Pages in a browser: no errors, nothing clipped, and the text that is in the document. Needs Chromium."""

import html
import json
import re
import subprocess

from nestree.display import escape_invisible
from nestree.evaluation import compare
from nestree.report import to_html
from nestree.show import draw_boxes, draw_page
from nestree.types import Document, Entity, Sentence
from tests.evaluation.cases import GOLD, PREDICTED
from tests.tiny import write_text

from .cases import CHROMIUM, CROSSING, EVIL, NEEDS_CHROMIUM, PARSED, PRESIDENT

pytestmark = NEEDS_CHROMIUM

# Measures the page in the browser, in a window of 420 pixels, and writes the results into it.
PROBE = """<script>
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const rect = element => element.getBoundingClientRect();
const inside = (a, b) => a.top >= b.top - 1 && a.bottom <= b.bottom + 1 &&
  a.left >= b.left - 1 && a.right <= b.right + 1;
const visible = selector => all(selector).filter(x => getComputedStyle(x).display != 'none');
const texts = all('.text').map(text => {
  const copy = text.cloneNode(true);
  all('.label, .number', copy).forEach(element => element.remove());
  return copy.textContent; });
const boxes = all('.e');
const before = visible('.label i').length;
all('.switch input').forEach(input => input.click());
const alone = [];  // full stops and labels that are not on the line of what is before them
for (const text of all('.text')) {
  const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
  let last = null;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const label = node.parentElement.closest('.label');
    for (let k = 0; k < node.length; k++) {
      const range = document.createRange();
      range.setStart(node, k); range.setEnd(node, k + 1);
      const at = range.getBoundingClientRect();
      if (!at.width) continue;
      if ((label || node.data[k] == '.') && last && at.top > last.bottom - 2) alone.push(text.textContent);
      if (node.data[k].trim()) last = at;
    }
  }
}
const shown = [[0, 0], [1, 0], [0, 1], [4, 3]].map(chosen => {  // kind and label of examples
  all('.filters select').forEach((select, k) => { select.selectedIndex = chosen[k]; });
  return visible('.example b').filter(b => b.offsetParent).map(b => b.textContent); });
all('details').forEach(details => { details.open = true; });
const results = { texts, before, after: visible('.label i').length, alone, shown, boxes: boxes.length,
  width: innerWidth, wide: document.documentElement.scrollWidth,
  labels: all('.label', document.body).filter(x => x.closest('.e')).every(x =>
    getComputedStyle(x).backgroundColor == getComputedStyle(x.closest('.e')).borderTopColor),
  nested: all('.e .e').every(box => inside(rect(box), rect(box.parentElement.closest('.e')))),
  outside: all('svg text').filter(t => !inside(rect(t), rect(t.closest('svg')))).map(t => t.textContent),
  clipped: all('.chart .value, .track i, .ticks span, figure > svg').filter(x =>
    rect(x).right > innerWidth || rect(x).left < 0).map(x => x.outerHTML) };
document.body.insertAdjacentHTML('beforeend', '<pre id=results></pre>');
document.getElementById('results').textContent = JSON.stringify(results);
</script>"""


def open_page(folder, source):
    """The browser's console, and the results of PROBE."""
    path = write_text(folder / "page.html", source + PROBE)
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        "--disable-background-networking", "--no-first-run",
        f"--user-data-dir={folder}/profile", "--window-size=420,900", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    console = [line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    results = re.search('<pre id="results">(.*?)</pre>', done.stdout.decode(), re.S)
    return console, json.loads(html.unescape(results[1])) if results else None


def test_a_page_in_a_browser(tmp_path):
    deep = Sentence(["w"] * 13, [Entity(k, 13, "organization", score=0.5) for k in (0, 3, 6, 9, 12)])
    nested = [Entity(20, 21, "X"), Entity(19, 21, "Y")]
    stops = [  # full stops and labels at every place of a line, after words, spaces and boxes
        Document([Sentence([*"w" * 20, "i" * k, "."], nested * (k % 2))]) for k in range(1, 60)
    ]
    text = "one\r\ntwo\tthree  four"
    at = [(0, 3), (5, 8), (9, 14), (16, 20)]
    spaces = Document([Sentence([text[i:j] for i, j in at], [Entity(0, 3, "A")], text, at)], text)
    shown = [PRESIDENT, EVIL, PARSED, CROSSING, Document([deep]), spaces, *stops]
    console, results = open_page(tmp_path, draw_page(shown, "many") + draw_boxes(PRESIDENT))
    assert console == []
    shown.append(PRESIDENT)
    assert results["texts"] == [escape_invisible(document.with_text().text) for document in shown]
    assert results["boxes"] == 3 + 2 + 3 + 3 + 5 + 1 + 60 + 3
    assert (results["before"], results["after"]) == (0, 4 + 1 + 4 + 5 + 4)
    assert [text.count("organization") for text in results["alone"]] == [5]  # more than fits on a line
    assert results["nested"]
    assert results["labels"]
    assert results["wide"] <= results["width"] <= 520
    assert results["outside"] == []


def test_a_report_in_a_browser(tmp_path):
    scored = Sentence(GOLD.words, [Entity(e.start, e.end, e.label, e.head, 0.7) for e in PREDICTED.entities])
    found = compare([GOLD], [scored], [PREDICTED], names=("ours", "theirs"), resamples=20, swaps=20)
    console, results = open_page(tmp_path, to_html(found.first, found))
    assert console == []
    everything = ["Wrong type", "Wrong boundary", "Missed", "Spurious", "Wrong head"]
    assert results["shown"] == [everything, ["Wrong type"], ["Spurious", "Wrong head"], []]
    assert results["wide"] <= results["width"] <= 520
    assert results["clipped"] == results["outside"] == []
