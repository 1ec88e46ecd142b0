// Text with nested boxes. Entities that cross others, which only models without trees predict, are cut into parts.

import { colorClass, element } from "./menu.js";
import { state } from "./state.js";
import { formatProbability, visibleText } from "./text.js";

const positions = new WeakMap(); // of each text node: where it begins in its block

/** The entities with the labels that the filter shows; what is known is always shown. */
export function filterEntities(entities) {
  const { threshold, hidden } = state;
  const shown = [];
  for (const entity of entities) {
    const labels = entity.labels.filter(({ label, score, known }) =>
      !hidden.has(label) && (known || score === null || score >= threshold));
    if (labels.length) shown.push({ ...entity, labels });
  }
  return shown;
}

/** The edges of boxes in text order, as matching brackets: {at, entity, opens, cut, height, cutAtEnd}. */
function findEdges(entities) {
  const starting = Map.groupBy(entities, (entity) => entity.start);
  const borders = new Set(entities.flatMap(({ start, end }) => [start, end]));
  const edges = [];
  const open = []; // opening edges, the outermost first
  for (const at of [...borders].sort((a, b) => a - b)) {
    const outermost = open.findIndex((edge) => edge.entity.end === at);
    const cut = [];
    while (outermost >= 0 && open.length > outermost) {
      const edge = open.pop();
      edge.cutAtEnd = edge.entity.end > at;
      edges.push({ at, entity: edge.entity, opens: false, cut: edge.cutAtEnd });
      if (open.length) open.at(-1).height = Math.max(open.at(-1).height, edge.height + 1);
      if (edge.cutAtEnd) cut.unshift(edge.entity);
    }
    const opening = [...cut, ...(starting.get(at) ?? [])].sort((a, b) => b.end - a.end);
    for (const entity of opening) {
      open.push({ at, entity, opens: true, cut: entity.start < at, height: 0, cutAtEnd: false });
      edges.push(open.at(-1));
    }
  }
  return edges;
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u; // letters

/**
 * Draw the text of a block with its entities and a button after each sentence. Letters in boxes, which are isolated, do
 * not show the browser the direction of a line; if it begins with one, a mark does.
 */
export function drawBlock(block, entities, sentences) {
  const fragment = document.createDocumentFragment();
  const edges = findEdges(entities);
  const heads = new Map(entities.filter((e) => e.head).map((e) => [e.head.start, e.head.end]));
  const ends = new Map(sentences.map((sentence) => [sentence.end, sentence]));
  const borders = new Set([0, block.text.length, ...edges.map((edge) => edge.at), ...ends.keys()]);
  for (const [start, end] of heads) borders.add(start).add(end);
  const order = [...borders].sort((a, b) => a - b);
  let parent = fragment;
  let next = 0;
  let headEnd = 0;
  order.forEach((at, k) => {
    for (; next < edges.length && edges[next].at === at; next++) {
      if (edges[next].opens) {
        const line = block.text.slice(block.text.lastIndexOf("\n", at - 1) + 1);
        const isFirst = parent === fragment && !/\p{L}/u.test(line.slice(0, line.length - block.text.length + at));
        if (isFirst && RIGHT_TO_LEFT.test(line.match(/\p{L}/u)?.[0])) fragment.append(element("span", "rtl"));
        parent = parent.appendChild(drawBox(edges[next], block));
      } else {
        parent.append(drawLabel(edges[next]));
        parent = parent.parentNode;
      }
    }
    if (ends.has(at)) parent.append(drawTreeButton(ends.get(at)));
    if (k + 1 === order.length) return;
    if (heads.has(at)) headEnd = heads.get(at);
    const node = document.createTextNode(visibleText(block.text.slice(at, order[k + 1])));
    positions.set(node, at);
    if (at < headEnd) parent.appendChild(element("u", "head")).append(node);
    else parent.append(node);
  });
  return fragment;
}

function drawBox({ entity, cut, cutAtEnd, height }, block) {
  const { labels } = entity;
  const box = element("span", `e ${colorClass(labels[0].label)}${cut ? " from" : ""}${cutAtEnd ? " on" : ""}`);
  const mark = state.marks.get(`${block.start + entity.start}-${block.start + entity.end}`);
  if (mark) box.classList.add(mark);
  box.style.setProperty("--h", height);
  box.dir = "auto";
  box.tabIndex = -1;
  box.role = "group"; // not a button: inner boxes would be hidden from screen readers
  const text = block.text.slice(entity.start, entity.end);
  const names = labels.map(({ label, score, known }) =>
    known ? `${label}, confirmed` : score === null ? label : `${label} ${score.toFixed(3)}`);
  box.ariaLabel = `${text}: ${names.join("; ")}${mark ? `; ${mark}` : ""}`;
  const head = entity.head ? [`head: ${block.text.slice(entity.head.start, entity.head.end)}`] : [];
  box.title = [...names, ...head].join("\n");
  box.entity = entity;
  return box;
}

function drawLabel({ entity, cut }) {
  const label = element("small", "label");
  const names = label.appendChild(element("bdi"));
  if (cut) names.append("…");
  entity.labels.forEach(({ label, score, known }, k) => {
    names.append(`${k ? ", " : ""}${known ? "✓ " : ""}${label}`);
    if (score === null || known) return;
    names.append(element("i", "", `\u00a0${formatProbability(score)}`));
  });
  label.prepend("\u2060"); // joins the label to the last word
  return label;
}

function drawTreeButton(sentence) {
  const title = "Tree of this sentence";
  const button = element("button", "to-tree", "∧");
  return Object.assign(button, { type: "button", title, ariaLabel: title, tabIndex: -1, sentence });
}

/** One end of a selection as a position in the text of the page; null: there is no text. */
export function findPosition(root, node, offset) {
  const place = (text, at) => text.parentElement.closest(".block").block.start + positions.get(text) + at;
  if (positions.has(node)) return place(node, offset);
  // Between elements, in a label, or outside: where the next text begins.
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const point = document.createRange();
  point.setStart(node, offset);
  let last = null;
  while (walker.nextNode()) {
    const { currentNode } = walker;
    if (!positions.has(currentNode)) continue;
    if (point.comparePoint(currentNode, 0) >= 0) return place(currentNode, 0);
    last = currentNode;
  }
  return last && place(last, last.length);
}
