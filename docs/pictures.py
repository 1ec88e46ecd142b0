"""Draws the pictures of the documentation: `python docs/pictures.py` writes the SVG files beside this one.

Each brings its own background and both sets of colours, so that it can be read on a light and on a dark page.
"""

from html import escape
from pathlib import Path

import torch

import nestree
from nestree.display import render
from nestree.show import draw_svg, format_probability, span_levels, span_modifiers
from nestree.show.html import text_html
from nestree.treecrf import LexicalPotentials, best_trees, marginals, use_backend

# A sentence that was scored by hand.

WORDS = ["The", "president", "of", "the", "University", "of", "California", "met", "Iraqi", "army", "leaders"]
ENTITIES = {(0, 7): 2.5, (3, 7): 2.5, (6, 7): 1.5, (8, 11): 2.5, (8, 10): 1.5, (8, 9): 1.5}
PHRASES = {(1, 7): 0.5, (2, 7): 1.0, (4, 7): 1.0, (5, 7): 1.0, (7, 11): 1.5}  # good spans, but no entities
MODIFIERS = {
    7: {1: 2.5, 10: 2.5},  # met: president, leaders
    1: {0: 2.5, 2: 2.0},  # president: The, of
    2: {4: 2.0},  # of: University
    4: {3: 2.5, 5: 2.0},  # University: the, of
    5: {6: 2.5},  # of: California
    10: {9: 2.0, 8: 0.5},  # leaders: army, Iraqi
    9: {8: 1.5},  # army: Iraqi
}
ROOTS = {7: 2.0, 1: 0.5}  # met, president


def hand_scored() -> LexicalPotentials:
    """A batch of one: the sentence above. Whatever is not written above scores 0."""
    n = len(WORDS)
    scores = LexicalPotentials(
        torch.zeros(1, n + 1, n + 1), torch.zeros(1, n, n), torch.zeros(1, n), torch.zeros(1, n + 1, n + 1)
    )
    for (i, j), score in {**ENTITIES, **PHRASES}.items():
        scores.span[0, i, j] = score
    for head, governed in MODIFIERS.items():
        for modifier, score in governed.items():
            scores.arc[0, head, modifier] = score
    for head, score in ROOTS.items():
        scores.root[0, head] = score
    return scores


STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de }
  text { font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace }
  text { font-size: 15px; fill: #1f2328 } .small { font-size: 13px } .bold { font-weight: bold }
  .muted { fill: #59636e } .middle { text-anchor: middle }
  .line { fill: none; stroke: #8c959f; stroke-width: 1.5 } .entity { stroke-width: 3 }
  .behind { fill: #ffffff } .pair { fill: none; stroke: #8c959f; stroke-dasharray: 3 3 }
  .a { --c: #0e7490 } .b { --c: #8250df } .c { --c: #1a7f37 }
  .headed { --c: #0969da; --f: #ddf4ff } .hooked { --c: #bc4c00; --f: #fff1e5 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 } .muted { fill: #9198a1 }
    .line, .pair { stroke: #6e7681 } .behind { fill: #0d1117 }
    .a { --c: #39c5cf } .b { --c: #d2a8ff } .c { --c: #56d364 }
    .headed { --c: #58a6ff; --f: #0c2d6b } .hooked { --c: #f0883e; --f: #3d1300 }
  }
  text.a, text.b, text.c, text.headed, text.hooked { fill: var(--c) }
  path.a, path.b, path.c, path.headed, path.hooked { stroke: var(--c) }
  rect.headed, rect.hooked { fill: var(--f); stroke: var(--c); stroke-width: 1.5 }
"""
CELL = 9.03  # the width of a character of 15 pixels
ROW = 28


def page(width: float, height: float, title: str, parts: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def path(kind: str, d: str) -> str:
    return f'<path class="line {kind}" d="{d}"/>'


def on_line(x: float, y: float, words: str, kind: str = "") -> list[str]:
    """Words on a line, which makes room for them."""
    wide = len(words) * CELL + 6
    behind = f'<rect class="behind" x="{x - wide / 2:.1f}" y="{y - 9:.1f}" width="{wide:.1f}" height="18"/>'
    return [behind, text(x, y + 5, words, f"middle {kind}")]


def tree() -> str:
    """The best tree of the sentence: lines for its spans, brackets for its entities."""
    n = len(WORDS)
    scores = hand_scored()
    with use_backend("reference"):
        best, part = best_trees(scores, [n])[0], marginals(scores, [n])
    spans = {(i, j): h for i, j, h in best.spans}
    height, level = span_levels(spans), span_levels(ENTITIES)
    colour = {span: "abc"[at] for span, at in level.items()}
    start = [24 + CELL * sum(max(4, len(word)) + 1 for word in WORDS[:w]) for w in range(n)]
    end = [start[w] + CELL * len(WORDS[w]) for w in range(n)]
    middle = [(start[w] + end[w]) / 2 for w in range(n)]
    words_at = 40 + ROW * (height[0, n] + 1)

    def row(span: tuple[int, int]) -> float:
        return words_at - 18 - ROW * height[span] + (ROW / 2 if height[span] else 0)

    top = spans[0, n]
    root = row((0, n)) - ROW
    parts = [path("", f"M {middle[top]:.1f} {root + 8:.1f} V {words_at - 18}")]
    parts += [text(middle[top], root, f"root {format_probability(part.root[0, top].item())}", "middle bold")]
    labels = []
    for span, modifier in span_modifiers(spans).items():
        y, kind = row(span), f"entity {colour[span]}" if span in ENTITIES else ""
        a, b = middle[spans[span]], middle[modifier]
        bend = 6 if b > a else -6
        parts.append(path(kind, f"M {a:.1f} {y} H {b - bend:.1f} q {bend} 0 {bend} 6"))
        parts.append(path("", f"M {b:.1f} {y + 6} V {words_at - 18}"))
        labels += on_line(
            (a + b) / 2, y, format_probability(part.span[0, span[0], span[1]].item()), colour.get(span, "")
        )
    parts += labels
    for w, word in enumerate(WORDS):
        inner = min((s for s in ENTITIES if s[0] <= w < s[1]), key=lambda s: s[1] - s[0], default=None)
        parts.append(text(start[w], words_at, word, f"bold {colour[inner]}" if inner else "bold"))
    for (i, j), at in level.items():
        y = words_at + 10 + 24 * at
        a, b = start[i], end[j - 1]
        parts.append(path(colour[i, j], f"M {a:.1f} {y} q 0 9 9 9 H {b - 9:.1f} q 9 0 9 -9"))
        if at:
            parts += on_line((a + b) / 2, y + 9, WORDS[spans[i, j]], f"{colour[i, j]}")
    return page(end[-1] + 24, words_at + 100, "The best tree of: " + " ".join(WORDS), parts)


def one_chart() -> str:
    """Rows of the chart for two neighbouring spans, and how they make the row of their union."""
    words = ["The", "Iraqi", "army", "leaders", "met", "him"]
    left, wide, high = 250, 82, 34
    parts: list[str] = []

    def strip(y: float, i: int, j: int, name: str, note: str, only_inside: bool = False) -> None:
        parts.append(text(24, y + 15, name, "bold"))
        parts.append(text(24, y + 32, note, "small muted"))
        for x in range(len(words)):
            inside = i <= x < j
            if only_inside and not inside:
                continue
            kind = "headed" if inside else "hooked"
            at = left + wide * x
            parts.append(f'<rect class="{kind}" x="{at + 4}" y="{y}" width="{wide - 8}" height="{high}" rx="5"/>')
            parts.append(text(at + wide / 2, y + 22, kind, f"small middle {kind}"))

    def rule(y: float, name: str, what: str) -> None:
        parts.append(text(24, y, name, "bold"))
        parts.append(text(24, y + 18, what, "small muted"))

    def arrow(kind: str, start: str, y: float) -> None:
        parts.append(path(kind, f"{start} V {y} m -5 -8 l 5 8 l 5 -8"))

    for x, word in enumerate(words):
        parts.append(text(left + wide * (x + 0.5), 40, word, "middle bold"))
        parts.append(text(left + wide * (x + 0.5), 58, f"x = {x}", "small middle muted"))
    for x in (1, 2, 3):
        at = left + wide * x
        parts.append(f'<rect class="pair" x="{at + 1}" y="70" width="{wide - 2}" height="104" rx="8"/>')
        parts.append(text(at + wide / 2, 127, "+", "middle bold"))
        arrow("headed", f"M {at + wide / 2} 180", 226)
        arrow("headed", f"M {at + wide / 2} 276", 322)
    strip(76, 1, 3, "chart[1, 3, x]", "Iraqi army")
    strip(134, 3, 4, "chart[3, 4, x]", "leaders")
    rule(200, "COMPLETE", "both, ⊕ over all splits")
    strip(236, 1, 4, "headed(1, 4, x)", "Iraqi army leaders", only_inside=True)
    for x in (0, 4, 5):
        at, edge = left + wide * (x + 0.5), left + wide * (1 if x == 0 else 4)
        arrow("hooked", f"M {edge} 253 H {at + (8 if x == 0 else -8)} Q {at} 253 {at} 264", 322)
    rule(300, "ATTACH", "plus arc, ⊕ over heads")
    strip(332, 1, 4, "chart[1, 4, x]", "Iraqi army leaders")
    parts.append(text(left + 4, 396, "headed: x lies in the span and is its head", "small headed"))
    parts.append(text(left + 4, 416, "hooked: x lies outside, and the span is its modifier", "small hooked"))
    return page(left + wide * len(words) + 20, 436, "One chart for both kinds of item", parts)


def shown() -> str:
    """What the bundled model finds, as `nestree show` draws it on a page: boxes, probabilities, the tree."""
    document = nestree.load(device="cpu", precision="float32")(READ)
    boxes = text_html(document)
    style = "".join(map(render, ("templates/colors.css.jinja", "show/templates/boxes.css", "show/templates/trees.css")))
    drawing = draw_svg(document.sentences[0])
    wide, high = (float(drawing.split(f'{side}="')[1].split('"')[0]) for side in ("width", "height"))
    width, height = wide + 160, high + 84  # boxes need more room than the tree
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img">',
            f"<title>Nested entities of: {escape(READ)}</title>",
            f"<style>{style}",
            ".picture { color: #1f2328 } .page { fill: #ffffff; stroke: #d0d7de }",
            ".nestree .label i { display: inline } .picture .text { font: 14px system-ui, sans-serif }",
            "@media (prefers-color-scheme: dark) { .picture { color: #e6edf3 }",
            "  .page { fill: #0d1117; stroke: #30363d } }",
            "</style>",
            f'<g class="picture nestree"><rect class="page" x="0.5" y="0.5" width="{width - 1:.0f}" '
            f'height="{height - 1:.0f}" rx="8"/>',
            f'<foreignObject x="20" y="16" width="{width - 40:.0f}" height="50">',
            f'<div xmlns="http://www.w3.org/1999/xhtml" class="picture nestree">{boxes}</div></foreignObject>',
            f'<g transform="translate(80 72)">{drawing}</g></g>',
            "</svg>\n",
        ]
    )


READ = "The president of the University of California met leaders of the Iraqi army."
PICTURES = {"tree.svg": tree, "one_chart.svg": one_chart, "show.svg": shown}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / name).write_text(draw(), encoding="utf-8")
