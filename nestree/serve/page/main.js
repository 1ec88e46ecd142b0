// The page: requests to the server as the user pauses, and what the user does.

import { cached, hasKey, recognize, request, RequestError, setKey } from "./api.js";
import { filterEntities, findPosition } from "./boxes.js";
import { EXAMPLES } from "./examples.js";
import { copy, download, toFile } from "./export.js";
import { button, closeMenu, colorClass, element, openMenu } from "./menu.js";
import { drawChanges } from "./panels.js";
import { confirm, currentBlocks, editText, reject, replaceText, state, undo } from "./state.js";
import { mapEdit, moveSpan, snapToWords } from "./text.js";
import { boxSpan, draw, drawSentence, drawTable, entitiesOf, findBlock, focusBox } from "./view.js";
import { setStatus, shownEntities, showTree } from "./view.js";

const PAUSE = 250; // milliseconds after the last key
const REQUEST_CHARACTERS = 10_000; // in one request
const PASSING = [0, 429, 502, 503, 504]; // statuses that are worth another try
const get = (id) => document.getElementById(id);
const source = get("source");
const output = get("text");
const problem = get("problem");

let drawnText = ""; // that of state.blocks
let running = null; // the AbortController of the requests under way
let timer = 0; // of the next request
let delay = 1; // seconds until another try

// Requests

/** Ask the server for what is not known yet, and draw; `decided` describes a decision whose effects are then shown. */
async function refresh(decided = "") {
  clearTimeout(timer);
  running?.abort();
  const { signal } = (running = new AbortController());
  const before = shownEntities();
  takeBlocks();
  const unread = state.blocks.filter((block) => !cached(block) && block.text.trim());
  const missing = [...new Map(unread.map((block) => [block.key, block])).values()];
  output.ariaBusy = String(missing.length > 0);
  state.marks = new Map();
  draw();
  try {
    if (!state.labels.length) await readLabels();
    while (missing.length) {
      const batch = [missing.shift()];
      let size = batch[0].text.length;
      while (missing.length && (size += missing[0].text.length) <= REQUEST_CHARACTERS) batch.push(missing.shift());
      get("model").textContent = `Model: ${await recognize(batch, signal)}`;
      if (signal.aborted) return;
      if (missing.length) draw();
    }
  } catch (error) {
    if (error.name !== "AbortError") handleError(error, decided);
    return;
  }
  output.ariaBusy = "false";
  problem.hidden = true;
  delay = 1;
  const failed = state.blocks.map(cached).find((answer) => answer?.error);
  if (failed && decided && state.history.length) {
    undo();
    await refresh();
    setStatus(`Not possible: ${failed.error}`);
    return;
  }
  if (decided) state.marks = drawChanges(before, shownEntities(), decided);
  draw();
}

/** Take the blocks of the text. Until the server has read a block, it has the entities that an edit did not touch. */
function takeBlocks() {
  const old = state.blocks.flatMap((block) => entitiesOf(block).map((entity) => moveSpan(entity, block.start)));
  const kept = old.map(mapEdit(drawnText, state.text)).filter(Boolean);
  state.blocks = currentBlocks();
  drawnText = state.text;
  for (const block of state.blocks) {
    if (cached(block)) continue;
    const mine = kept.filter((entity) => findBlock(entity) === block);
    block.provisional = mine.map((entity) => moveSpan(entity, -block.start));
  }
}

function handleError(error, decided) {
  if (!(error instanceof RequestError)) throw error;
  output.ariaBusy = "false";
  setStatus("Not read yet.");
  if (error.status === 401) return askForKey();
  const again = () => refresh(decided);
  const passing = PASSING.includes(error.status);
  problem.firstElementChild.textContent = `${error.message}${passing ? " Trying again every few seconds." : ""}`;
  problem.lastElementChild.onclick = again;
  problem.hidden = false;
  if (!passing) return;
  timer = setTimeout(again, 1000 * (error.retryAfter ?? delay));
  delay = Math.min(2 * delay, 10);
}

function askForKey() {
  const dialog = get("key");
  const reason = hasKey() ? "The server does not accept this key." : "This server needs its API key.";
  dialog.querySelector("p").textContent = reason;
  dialog.querySelector("input").value = "";
  if (!dialog.open) dialog.showModal();
}

/** The labels of the model, as buttons that show and hide them. */
async function readLabels() {
  const answer = await request("/v1/labels");
  state.labels = answer.labels.map(({ label }) => label);
  state.colors = new Map(answer.labels.map(({ label, color }) => [label, color]));
  if (!location.hash) state.threshold = answer.threshold;
  get("labels").replaceChildren(...answer.labels.map(({ label, description }) => {
    const toggle = () => {
      if (!state.hidden.delete(label)) state.hidden.add(label);
      draw();
    };
    const chip = Object.assign(button("", toggle, `chip ${colorClass(label)}`), { label, title: description });
    chip.append(element("b", "", label), " ", element("span"));
    return chip;
  }));
}

// Text and controls

source.addEventListener("input", () => {
  clearTimeout(timer);
  closeMenu();
  timer = setTimeout(readSource, PAUSE);
});

function readSource() {
  const text = source.value.toWellFormed?.() ?? source.value;
  if (text !== state.text) editText(text);
  get("changes").hidden = true;
  refresh();
}

function setText(text, decisions) {
  replaceText(text, decisions);
  source.value = text;
  source.scrollTop = 0;
  get("changes").hidden = true;
  refresh();
}

get("clear").addEventListener("click", () => {
  setText("");
  source.focus();
});
get("examples").append(...Object.keys(EXAMPLES).map((name) => element("option", "", name)));
get("examples").addEventListener("change", ({ target }) => {
  setText(EXAMPLES[target.value]);
  target.selectedIndex = 0;
});

let frame = 0;
get("threshold").addEventListener("input", ({ target }) => {
  state.threshold = Number(target.value);
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
});
get("probabilities").addEventListener("change", ({ target }) => {
  output.classList.toggle("with-probabilities", target.checked);
});
get("table").addEventListener("toggle", drawTable);
get("tree").querySelector("button").addEventListener("click", () => {
  state.treeAt = null;
  drawSentence();
});
get("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(event.target.querySelector("input").value);
  get("key").close();
  refresh();
});

// Decisions

document.addEventListener("decided", ({ detail }) => refresh(detail));

function goBack() {
  if (!state.history.length) return;
  closeMenu();
  if (undo()) {
    source.value = state.text;
    refresh();
  } else refresh("Undone.");
}

/** The menu of a span of the text. */
function offer(rectangle, span) {
  const block = findBlock(span);
  if (!block) return setStatus("An entity lies within one paragraph.");
  const shown = filterEntities(entitiesOf(block)).map((entity) => moveSpan(entity, block.start));
  const entity = shown.find(({ start, end }) => start === span.start && end === span.end);
  openMenu(rectangle, span, entity, cached(block)?.sentences.length ? () => showTree(span.start) : null);
}

function offerSelection() {
  const selection = getSelection();
  const inSource = document.activeElement === source && source.selectionStart < source.selectionEnd;
  if (inSource) {
    readSource();
    const span = snapToWords(state.text, source.selectionStart, source.selectionEnd);
    if (span) return offer(source.getBoundingClientRect(), span);
  } else if (!selection.isCollapsed && output.contains(selection.anchorNode)) {
    const range = selection.getRangeAt(0);
    const start = findPosition(output, range.startContainer, range.startOffset);
    const end = findPosition(output, range.endContainer, range.endOffset);
    const span = start !== null && end !== null && snapToWords(state.text, start, end);
    if (span) return offer(range.getBoundingClientRect(), span);
  }
  setStatus("Select words in either text first.");
}

get("undo").addEventListener("click", goBack);
get("mark").addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the selection
get("mark").addEventListener("click", offerSelection);
output.addEventListener("pointerup", () => setTimeout(() => {
  if (!getSelection().isCollapsed) offerSelection();
}));
output.addEventListener("click", ({ target }) => {
  if (target.sentence) return showTree(target.closest(".block").block.start + target.sentence.start);
  const box = target.closest(".e");
  if (box && getSelection().isCollapsed) offer(box.getBoundingClientRect(), boxSpan(box));
});

output.addEventListener("keydown", (event) => {
  const box = event.target.closest(".e");
  if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
  const span = boxSpan(box);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step) {
    const boxes = [...output.querySelectorAll(".e")];
    focusBox(boxes[boxes.indexOf(box) + step] ?? box);
  } else if (event.key === "Enter" || event.key === " ") offer(box.getBoundingClientRect(), span);
  else if (event.key === "c") confirm(span, box.entity.labels.map(({ label }) => label));
  else if (event.key === "r" || event.key === "Delete") reject(span);
  else if (event.key === "t") showTree(span.start);
  else return;
  event.preventDefault();
});

document.addEventListener("keydown", (event) => {
  if (event.altKey && event.code === "KeyM") offerSelection();
  else if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.target.matches("textarea, input")) goBack();
  else return;
  event.preventDefault();
});

// Files and links

const content = () => toFile(get("format").value, state.text, shownEntities());

async function copyText(text, done) {
  try {
    await copy(text);
    setStatus(done);
  } catch (error) {
    setStatus(`Not copied: ${error.message}`);
  }
}

get("copy").addEventListener("click", () => copyText(content(), "Copied."));
get("download").addEventListener("click", () => download(content(), `entities.${get("format").value}`));
get("link").addEventListener("click", () => {
  const parts = new URLSearchParams({ text: state.text, threshold: state.threshold });
  if (state.decisions.length) parts.set("decisions", JSON.stringify(state.decisions));
  history.replaceState(null, "", `#${parts}`);
  copyText(location.href, "Copied a link to this text.");
});

/** Take the text, threshold and decisions of a link. */
function readLink() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const threshold = Number(parts.get("threshold"));
  if (threshold > 0 && threshold < 1) state.threshold = threshold;
  const text = parts.get("text") || source.value || Object.values(EXAMPLES)[0];
  let decisions = [];
  try {
    decisions = JSON.parse(parts.get("decisions") ?? "[]").filter(({ kind, start, end, label }) =>
      ["known", "forbidden"].includes(kind) && [start, end].every(Number.isInteger) && 0 <= start && start < end &&
      end <= text.length && (label === null || typeof label === "string"));
  } catch { /* a broken link: its text alone */ }
  setText(text, decisions);
}

addEventListener("hashchange", readLink);
addEventListener("online", () => refresh());
readLink();
