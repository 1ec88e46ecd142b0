// The tree of a sentence as SVG, as `nestree show` draws it: spans and arcs above the words, entities below them.

import { colorClass } from "./menu.js";
import { formatProbability, textDirection, visibleText } from "./text.js";

const ROW = 26; // pixels between levels of the tree
const BRACKET_ROW = 24;
const GAP = 13; // between words
const MARGIN = 16;
const FONT = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace';
const ink = document.createElement("canvas").getContext("2d");

function measure(text, font) {
  ink.font = `${font} ${FONT}`;
  return ink.measureText(text).width;
}

function add(parent, tag, attributes, content = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, typeof value === "number" ? value.toFixed(1) : value);
  }
  element.textContent = content;
  return parent.appendChild(element);
}

function addText(parent, x, y, text, style) {
  add(parent, "text", { x, y, class: `${style} middle` }, text);
}

const width = ([i, j]) => j - i;
const inside = ([a, b], [i, j]) => i <= a && b <= j;

/** The SVG of a sentence {start, end, constituents} with its entities. */
export function drawTree(text, sentence, entities) {
  const { words, spans } = readSpans(sentence, text);
  const brackets = findBrackets(words, spans, entities, sentence);
  const { centers, starts, ends, total } = placeWords(words, brackets);
  const svg = add(new DocumentFragment(), "svg", { class: "tree", role: "img" });
  let bottom = MARGIN;
  const headed = spans.every((span) => span.head !== null);
  if (headed) {
    for (const span of spans) span.level = 0;
    for (const outer of spans.toSorted((a, b) => width(a.words) - width(b.words))) {
      const inner = spans.filter((span) => span !== outer && inside(span.words, outer.words));
      outer.level = 1 + Math.max(-1, ...inner.map((span) => span.level));
    }
    bottom += ROW * (spans[0].level + 1);
    addSpans(svg, words, spans, centers, bottom, (span) => {
      const entity = brackets.find((bracket) => String(bracket.words) === String(span.words) && bracket.label);
      return entity ? `entity ${colorClass(entity.label)}` : "";
    });
  }
  const baseline = bottom + 18;
  const heads = new Set(entities.map((entity) => entity.head?.start));
  words.forEach((word, w) => {
    addText(svg, centers[w], baseline, word.text, heads.has(word.start) ? "word head" : "word");
  });
  for (const { words: [i, j], row, label, text } of brackets) {
    const [a, b] = [starts[i], ends[j - 1]].sort((x, y) => x - y);
    const y = baseline + 8 + BRACKET_ROW * row;
    const room = measure(text, "12px") / 2 + 4;
    const gap = text ? `H${(a + b) / 2 - room}M${(a + b) / 2 + room} ${y + 8}` : "";
    const style = label ? `entity ${colorClass(label)} bracket` : "bracket";
    add(svg, "path", { class: style, d: `M${a} ${y}v3q0 5 5 5${gap}H${b - 5}q5 0 5 -5v-3` });
    if (text) addText(svg, (a + b) / 2, y + 12, text, "small");
  }
  const height = baseline + 14 + BRACKET_ROW * (1 + Math.max(-1, ...brackets.map((bracket) => bracket.row)));
  for (const [name, value] of Object.entries({ width: total, height, viewBox: `0 0 ${total} ${height}` })) {
    svg.setAttribute(name, value);
  }
  svg.setAttribute("aria-label", describe(words, spans, headed));
  return svg;
}

/** The words of a sentence, and its spans with words for characters: {words: [i, j], head: word, probability}. */
function readSpans({ constituents }, text) {
  const ordered = constituents.toSorted((a, b) => a.start - b.start || b.end - a.end);
  const leaves = ordered.filter(({ end }, k) => k + 1 === ordered.length || ordered[k + 1].start >= end);
  const words = leaves.map(({ start, end }) => ({ start, end, text: visibleText(text.slice(start, end)) }));
  const first = new Map(words.map((word, w) => [word.start, w]));
  const last = new Map(words.map((word, w) => [word.end, w + 1]));
  const spans = ordered.map(({ start, end, head, probability }) =>
    ({ words: [first.get(start), last.get(end)], head: head ? first.get(head.start) : null, probability }));
  return { words, spans };
}

/** The entities, and in trees without heads the other spans, each in a row below what it encloses. */
function findBrackets(words, spans, entities, sentence) {
  const brackets = [];
  for (const { start, end, labels } of entities.filter((e) => sentence.start <= e.start && e.end <= sentence.end)) {
    const i = words.findIndex((word) => word.end > start);
    const j = words.findLastIndex((word) => word.start < end) + 1;
    const texts = labels.map(({ label, score }) => (score === null ? label : `${label} ${formatProbability(score)}`));
    brackets.push({ words: [i, j], label: labels[0].label, text: texts.join(", ") });
  }
  for (const span of spans) {
    const known = brackets.some((bracket) => String(bracket.words) === String(span.words));
    if (span.head !== null || width(span.words) < 2 || known) continue;
    brackets.push({ words: span.words, label: "", text: "" });
  }
  brackets.sort((a, b) => width(a.words) - width(b.words));
  brackets.forEach((bracket, k) => {
    const below = brackets.slice(0, k).filter(({ words: [i, j] }) => i < bracket.words[1] && bracket.words[0] < j);
    bracket.row = 1 + Math.max(-1, ...below.map(({ row }) => row));
  });
  return brackets;
}

/** The middle and the ends of each word, with room for the texts of brackets; from right to left where the text is. */
function placeWords(words, brackets) {
  const own = words.map((word) => measure(word.text, "600 14px"));
  const widths = own.map((value) => Math.max(value, 34));
  for (const { words: [i, j], text } of brackets) {
    const available = widths.slice(i, j).reduce((sum, value) => sum + value + GAP, -GAP);
    widths[j - 1] += Math.max(0, measure(text, "12px") + 24 - available);
  }
  let x = MARGIN;
  const starts = widths.map((value) => (x += value + GAP) - value - GAP);
  const total = x - GAP + MARGIN;
  const ends = starts.map((start, w) => start + widths[w]);
  const centers = starts.map((start, w) => start + Math.min(widths[w], Math.max(own[w], 34)) / 2);
  if (textDirection(words.map((word) => word.text).join("")) === "ltr") return { centers, starts, ends, total };
  const mirror = (xs) => xs.map((value) => total - value);
  return { centers: mirror(centers), starts: mirror(starts), ends: mirror(ends), total };
}

function addSpans(svg, words, spans, x, bottom, style) {
  const root = spans[0];
  const top = bottom - ROW * (root.level + 0.5);
  add(svg, "path", { d: `M${x[root.head]} ${top + 4}V${bottom}` });
  addText(svg, x[root.head], top, "root", "small");
  spans.forEach((span, k) => {
    const { words: [i, j], head, level, probability } = span;
    if (j - i < 2) return;
    const modifier = findModifier(spans, k);
    const y = bottom - ROW * (level - 0.5);
    const [a, b] = [x[head], x[modifier]];
    const sign = Math.sign(b - a);
    const number = probability === null ? "" : formatProbability(probability);
    const room = measure(number, "12px") / 2 + 3;
    const numbered = number && Math.abs(b - a) > 2 * room + 16;
    const center = (a + b) / 2;
    const [start, end] = [`M${a} ${y}`, `H${b - 6 * sign}q${6 * sign} 0 ${6 * sign} 6`];
    const gap = numbered ? `H${center - sign * room}M${center + sign * room} ${y}` : "";
    const group = add(svg, "g", {});
    const phrase = words.slice(i, j).map((word) => word.text).join(" ");
    const roles = `head: ${words[head].text}, modifier: ${words[modifier].text}`;
    add(group, "title", {}, `${phrase}\n${roles}\nprobability ${number}`);
    add(group, "path", { class: "hit", d: start + end });
    add(group, "path", { class: style(span), d: start + gap + end });
    add(group, "path", { class: "arrow", d: `M${b - 3.5} ${y + 6}h7l-3.5 7z` });
    if (numbered) addText(group, center, y + 4, number, "small");
    add(svg, "path", { d: `M${b} ${y + 12}V${bottom}` });
  });
}

/** The head of the child of span k that does not contain its head. The first child comes right after its parent. */
function findModifier(spans, k) {
  const { words: [, end], head } = spans[k];
  const left = spans[k + 1];
  const middle = left.words[1];
  return head >= middle ? left.head : spans.find(({ words: [i, j] }) => i === middle && j === end).head;
}

function describe(words, spans, headed) {
  const sentence = words.map((word) => word.text).join(" ");
  if (!headed) return `Spans of: ${sentence}`;
  const arcs = spans.flatMap((span, k) => (width(span.words) < 2 ? [] :
    [`${words[span.head].text} governs ${words[findModifier(spans, k)].text}`]));
  return `Tree of: ${sentence}. Root: ${words[spans[0].head].text}. ${arcs.join("; ")}`;
}
