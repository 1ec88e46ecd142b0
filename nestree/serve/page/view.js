// What is drawn: the text in blocks, the controls around it, and the tree of a sentence.

import { cached } from "./api.js";
import { drawBlock, filterEntities } from "./boxes.js";
import { element } from "./menu.js";
import { drawDecisions, entityTable } from "./panels.js";
import { state } from "./state.js";
import { countPoints, formatProbability, moveSpan, textDirection, visibleText } from "./text.js";
import { drawTree } from "./tree.js";

const FIRST_BLOCKS = 20; // drawn before it is known what can be seen
const get = (id) => document.getElementById(id);
const output = get("text");
const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** All entities of a block, also those below the threshold; while the server reads it, those of before. */
export const entitiesOf = (block) => cached(block)?.entities ?? block.provisional ?? [];

/** The entities that pass the filter, in the text of the page. */
export function shownEntities() {
  return state.blocks.flatMap((block) =>
    filterEntities(entitiesOf(block)).map((entity) => moveSpan(entity, block.start)));
}

/** The block that a span of the text lies in. */
export function findBlock({ start, end }) {
  return state.blocks.find((block) => block.start <= start && end <= block.start + block.text.length);
}

/** Draw everything. Blocks that look the same keep their elements; those far away are drawn when they come near. */
export function draw() {
  const { blocks, marks, threshold, hidden, labels } = state;
  const old = [...output.children];
  const focused = output.contains(document.activeElement) ? boxSpan(document.activeElement) : null;
  const reusable = Map.groupBy(old, (child) => child.block.key);
  const children = blocks.map((block, k) => {
    const child = reusable.get(block.key)?.pop() ?? element("div", "block", visibleText(block.text));
    child.near ??= old[k]?.near ?? k < FIRST_BLOCKS;
    child.block = block;
    const end = block.start + block.text.length;
    const changed = [...marks].filter(([place]) => block.start <= parseInt(place) && parseInt(place) < end);
    child.wanted = [threshold, ...hidden, labels.length, ...changed, Boolean(cached(block))].join();
    if (child.near) drawNear(child);
    return child;
  });
  if (children.length !== old.length || children.some((child, k) => child !== old[k])) {
    output.replaceChildren(...children);
    for (const child of children) observer.observe(child);
  }
  const boxes = [...output.querySelectorAll(".e")];
  if (boxes.length && !boxes.some((box) => box.tabIndex === 0)) boxes[0].tabIndex = 0;
  if (focused && !output.contains(document.activeElement)) {
    focusBox(boxes.find((box) => boxSpan(box).start >= focused.start) ?? boxes.at(-1));
  }
  drawControls();
  drawDecisions();
  drawTable();
  drawSentence();
}

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    target.near = isIntersecting;
    if (isIntersecting) drawNear(target);
  }
}, { root: output, rootMargin: "800px 0px" });

function drawNear(child) {
  const { block, wanted, drawn } = child;
  if (wanted === drawn) return;
  const answer = cached(block);
  child.replaceChildren(drawBlock(block, filterEntities(entitiesOf(block)), answer?.sentences ?? []));
  if (answer?.error) child.append(element("p", "error", answer.error));
  child.classList.toggle("waiting", !answer);
  child.drawn = wanted;
}

/** The span of a box in the text of the page; null if this is not a box. */
export function boxSpan(box) {
  return box.entity ? moveSpan(box.entity, box.closest(".block").block.start) : null;
}

/** Move the focus to a box; the Tab key comes back to it. */
export function focusBox(box) {
  for (const other of output.querySelectorAll('.e[tabindex="0"]')) other.tabIndex = -1;
  if (!box) return;
  box.tabIndex = 0;
  box.focus();
}

export function setStatus(message) {
  get("status").textContent = message;
}

function drawControls() {
  const shown = shownEntities();
  const numbers = new Map();
  for (const { label } of shown.flatMap((entity) => entity.labels)) numbers.set(label, (numbers.get(label) ?? 0) + 1);
  for (const chip of get("labels").children) {
    chip.lastElementChild.textContent = numbers.get(chip.label) ?? "";
    chip.classList.toggle("none", !numbers.has(chip.label));
    chip.ariaPressed = String(!state.hidden.has(chip.label));
  }
  get("undo").disabled = !state.history.length;
  const length = countPoints(state.text).toPoint(state.text.length);
  get("length").textContent = length ? count(length, "character", "characters") : "";
  get("threshold").value = state.threshold;
  get("threshold").nextElementSibling.textContent = formatProbability(state.threshold);
  const found = state.text.trim() ? `${count(shown.length, "entity", "entities")}.` : "";
  setStatus(output.ariaBusy === "true" ? "Reading…" : found);
}

export function drawTable() {
  const panel = get("table");
  if (!panel.open) return;
  const focused = [...panel.querySelectorAll("button")].indexOf(document.activeElement);
  panel.lastElementChild.replaceChildren(...entityTable(shownEntities()));
  if (focused >= 0) panel.querySelectorAll("button")[focused]?.focus();
}

/** Draw the tree of the sentence at `state.treeAt`. */
export function drawSentence() {
  const at = state.treeAt;
  const block = at === null ? undefined : findBlock({ start: at, end: at + 1 });
  if (block && !cached(block)) return; // until the answer arrives
  const sentences = block ? cached(block).sentences : [];
  const sentence = sentences.find(({ start, end }) => start <= at - block.start && at - block.start < end);
  get("tree").hidden = !sentence;
  if (!sentence) return;
  const scroll = get("tree").querySelector(".scroll");
  scroll.dir = textDirection(block.text.slice(sentence.start, sentence.end)); // scrolls from its first word
  scroll.replaceChildren(drawTree(block.text, sentence, filterEntities(entitiesOf(block))));
}

export function showTree(at) {
  state.treeAt = at;
  drawSentence();
  if (get("tree").hidden) setStatus("This model has no tree of this sentence.");
  else get("tree").scrollIntoView({ block: "nearest" });
}
