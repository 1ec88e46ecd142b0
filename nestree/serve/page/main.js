// The page: controls, requests as the user pauses, and what is drawn of the answers.

import { cached, recognize, request, RequestError, setKey } from "./api.js";
import { drawBlock, filterEntities, findPosition } from "./boxes.js";
import { EXAMPLES } from "./examples.js";
import { copy, download, toFile } from "./export.js";
import { button, closeMenu, confirmEntity, element, openMenu, rejectEntity } from "./menu.js";
import { currentBlocks, editText, replaceText, state, undo, withdraw } from "./state.js";
import { formatProbability, mapEdit, snapToWords, visibleText } from "./text.js";
import { drawTree } from "./tree.js";

const PAUSE = 250; // milliseconds after the last key
const REQUEST_CHARACTERS = 10_000; // in one request
const FIRST_BLOCKS = 20; // drawn before it is known what can be seen
const MAX_ROWS = 500; // of the table
const CHANGE = 0.05; // of a probability that is worth a mark
const get = (id) => document.getElementById(id);
const source = get("source");
const output = get("text");
const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

let labels = []; // of the model
const colors = new Map();
let blocks = []; // as drawn
let marks = new Map(); // "start-end" -> "new" or "changed"
let treePlace = null; // a position in the sentence whose tree is drawn
let running = null; // the AbortController of the requests under way
let timer = 0;
let delay = 1; // seconds until the next try

const color = (label) => colors.get(label) ?? [...colors.keys()].indexOf(label) % 10;

// Requests

/** Ask the server for what is not known yet, and draw; `decided` describes a decision whose effects are then shown. */
async function refresh(decided = "") {
  clearTimeout(timer);
  running?.abort();
  const controller = (running = new AbortController());
  const before = shownEntities();
  const old = { text: output.source ?? "", entities: blocks.flatMap((block) => absolute(block, entitiesOf(block))) };
  blocks = currentBlocks();
  const mapped = mapEdit(old.text, state.text);
  const moved = old.entities.map(mapped).filter(Boolean);
  for (const block of blocks) {
    if (!cached(block)) block.provisional = relative(block, moved);
  }
  marks = new Map();
  draw();
  const missing = [...new Map(blocks.filter((block) => !cached(block) && block.text.trim()).map((b) => [b.key, b])).values()];
  output.ariaBusy = String(missing.length > 0);
  try {
    while (missing.length) {
      const batch = [missing.shift()];
      let size = batch[0].text.length;
      while (missing.length && (size += missing[0].text.length) <= REQUEST_CHARACTERS) batch.push(missing.shift());
      showModel(await recognize(batch, labels, controller.signal));
      if (controller.signal.aborted) return;
      if (missing.length) draw();
    }
  } catch (error) {
    if (error.name !== "AbortError") handleError(error, decided);
    return;
  }
  output.ariaBusy = "false";
  showProblem("");
  delay = 1;
  const failed = blocks.find((block) => cached(block)?.error);
  if (failed && decided && state.history.length) {
    undo();
    await refresh();
    get("status").textContent = `Not possible: ${cached(failed).error}`;
    return;
  }
  if (decided) compare(before, decided);
  draw();
}

function handleError(error, decided) {
  if (!(error instanceof RequestError)) throw error;
  const again = () => refresh(decided);
  output.ariaBusy = "false";
  if (error.status === 401) return askForKey();
  const passing = [0, 429, 502, 503, 504].includes(error.status);
  if (!passing) return showProblem(error.message, again);
  const seconds = error.retryAfter ?? delay;
  delay = Math.min(2 * delay, 15);
  showProblem(`${error.message} Trying again every few seconds.`, again);
  timer = setTimeout(again, 1000 * seconds);
}

function showProblem(message, again = null) {
  const problem = get("problem");
  problem.hidden = !message;
  problem.firstElementChild.textContent = message;
  problem.lastElementChild.onclick = again;
}

function askForKey() {
  const dialog = get("key");
  const input = dialog.querySelector("input");
  dialog.querySelector("p").textContent = sessionStorage.getItem("nestree-api-key")
    ? "The server does not accept this key." : "This server needs an API key.";
  input.value = "";
  if (!dialog.open) dialog.showModal();
}

/** The labels of the model with their colors and descriptions. */
async function readLabels() {
  const answer = await request("/v1/labels");
  const list = answer.labels.map((item) => (typeof item === "string" ? { label: item } : item));
  labels = list.map((item) => item.label);
  if (answer.threshold && !location.hash) setThreshold(answer.threshold);
  list.forEach((item, k) => colors.set(item.label, item.color ?? k % 10));
  get("labels").replaceChildren(...list.map(({ label, description }) => {
    const chip = button("", () => toggleLabel(chip, label), `chip c${color(label)}`);
    chip.append(element("b", "", label), " ", element("span"));
    Object.assign(chip, { ariaPressed: "true", title: description ?? "", label });
    return chip;
  }));
}

async function start() {
  try {
    await readLabels();
  } catch (error) {
    if (error.status !== 401 && error.status !== 0 && error.status !== 503) console.warn(error);
  }
  await refresh();
  if (!labels.length && get("problem").hidden && !get("key").open) await readLabels().then(draw, () => {});
}

function showModel(name) {
  if (name) get("model").textContent = `Model: ${name}`;
}

// Drawing

const entitiesOf = (block) => cached(block)?.entities ?? block.provisional ?? [];
const absolute = (block, entities) => entities.map((entity) => shift(entity, block.start));
const relative = (block, entities) => entities
  .filter(({ start, end }) => block.start <= start && end <= block.start + block.text.length)
  .map((entity) => shift(entity, -block.start));

function shift(entity, by) {
  const move = (span) => span && { ...span, start: span.start + by, end: span.end + by };
  return { ...move(entity), head: move(entity.head) };
}

/** All entities that pass the filter, in the text of the page. */
function shownEntities() {
  return blocks.flatMap((block) => absolute(block, filterEntities(entitiesOf(block), state)));
}

/** Draw everything. Blocks that look the same keep their elements; those far away are drawn when they come near. */
function draw() {
  const old = [...output.children];
  const reusable = Map.groupBy(old, (child) => child.block.key);
  const filter = `${state.threshold} ${[...state.hidden]} ${labels.length}`;
  const children = blocks.map((block, k) => {
    const near = old[k]?.near ?? k < FIRST_BLOCKS;
    const child = reusable.get(block.key)?.pop() ?? Object.assign(element("div", "block", visibleText(block.text)), { near });
    const changed = [...marks].filter(([key]) => block.start <= parseInt(key) && parseInt(key) < block.start + block.text.length);
    const wanted = `${filter} ${changed} ${cached(block) ? "read" : ""}`;
    Object.assign(child, { block, wanted });
    if (child.near) drawNear(child);
    return child;
  });
  if (children.length !== old.length || children.some((child, k) => child !== old[k])) {
    output.replaceChildren(...children);
    for (const child of children) observer.observe(child);
  }
  output.source = state.text;
  if (!output.querySelector('.e[tabindex="0"]')) output.querySelector(".e")?.setAttribute("tabindex", 0);
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
}, { rootMargin: "800px 0px" });

function drawNear(child) {
  const { block, wanted, drawn } = child;
  if (wanted === drawn) return;
  const answer = cached(block);
  const look = { color, mark: (start, end) => marks.get(`${start}-${end}`) };
  child.replaceChildren(drawBlock(block, filterEntities(entitiesOf(block), state), answer?.sentences ?? [], look));
  if (answer?.error) child.append(element("p", "error", answer.error));
  child.classList.toggle("waiting", !answer);
  child.drawn = wanted;
}

function drawControls() {
  const shown = shownEntities();
  const numbers = new Map(labels.map((label) => [label, 0]));
  for (const entity of shown) {
    for (const { label } of entity.labels) numbers.set(label, (numbers.get(label) ?? 0) + 1);
  }
  for (const chip of get("labels").children) {
    chip.lastElementChild.textContent = numbers.get(chip.label) || "";
    chip.classList.toggle("none", !numbers.get(chip.label));
  }
  get("undo").disabled = !state.history.length;
  get("length").textContent = state.text ? count(state.text.length, "character", "characters") : "";
  get("status").textContent = output.ariaBusy === "true" ? "Reading…" : state.text.trim() ? `${count(shown.length, "entity", "entities")}.` : "";
  document.querySelector(".threshold output").textContent = formatProbability(state.threshold);
}

function describe({ start, end }, label) {
  const text = visibleText(state.text.slice(start, end));
  const item = element("span", "item");
  item.append(element("b", label ? `chip c${color(label)}` : "", label ?? "no entity"), " ", element("bdi", "", text.length > 60 ? `${text.slice(0, 59)}…` : text));
  return item;
}

function drawDecisions() {
  const panel = get("decisions");
  panel.hidden = !state.decisions.length;
  panel.replaceChildren(element("span", "note", "Decided:"), ...state.decisions.map((decision) => {
    const item = describe(decision, decision.label);
    item.prepend(decision.kind === "known" ? "✓ " : "✗ ");
    const remove = button("×", () => { withdraw(decision); refresh("Withdrew a decision."); }, "plain");
    remove.ariaLabel = remove.title = "Withdraw";
    item.append(" ", remove);
    return item;
  }));
}

/** Mark what a decision has changed, and list it. */
function compare(before, message) {
  const index = (entities) => new Map(entities.flatMap((entity) =>
    entity.labels.map((one) => [`${entity.start}-${entity.end} ${one.label}`, { entity, ...one }])));
  const [old, now] = [index(before), index(shownEntities())];
  const rows = [];
  const add = (sign, { entity, label }, numbers) => {
    const item = describe(entity, label);
    item.prepend(`${sign} `);
    item.append(` ${numbers}`);
    rows.push(item);
  };
  for (const [key, one] of now) {
    const earlier = old.get(key);
    const place = key.split(" ")[0];
    if (!earlier) {
      marks.set(place, "new");
      add("+", one, formatProbability(one.score ?? 1));
    } else if (Math.abs((earlier.score ?? 1) - (one.score ?? 1)) >= CHANGE && !one.known) {
      marks.set(place, marks.get(place) ?? "changed");
      add("", one, `${formatProbability(earlier.score)} → ${formatProbability(one.score)}`);
    }
  }
  for (const [key, one] of old) if (!now.has(key)) add("−", one, "");
  get("changes").hidden = false;
  get("changes").replaceChildren(element("span", "note", `${message} ${rows.length ? "Changed:" : "Nothing else changed."}`), ...rows);
}

function drawTable() {
  if (!get("table").open) return;
  const table = element("table");
  table.innerHTML = '<thead><tr><th scope="col">text<th scope="col">label<th scope="col" class="num">probability<th scope="col">head<th scope="col"><tbody>';
  const shown = shownEntities();
  for (const entity of shown.slice(0, MAX_ROWS)) {
    const row = table.tBodies[0].insertRow();
    const text = row.insertCell().appendChild(element("bdi", "", visibleText(state.text.slice(entity.start, entity.end))));
    const names = entity.labels.map(({ label }) => label).join(", ");
    row.insertCell().textContent = names;
    row.insertCell().textContent = entity.labels.map(({ score }) => (score === null ? "" : score.toFixed(3))).join(", ");
    row.cells[2].className = "num";
    row.insertCell().append(element("bdi", "", entity.head ? visibleText(state.text.slice(entity.head.start, entity.head.end)) : ""));
    const known = entity.labels.every((one) => one.known);
    row.insertCell().append(
      known ? "confirmed " : button("Confirm", () => { confirmEntity(entity, entity.labels); refresh(`Confirmed “${text.textContent}”.`); }), " ",
      button("Reject", () => { rejectEntity(entity); refresh(`Rejected “${text.textContent}”.`); }));
  }
  const more = shown.length > MAX_ROWS ? [element("p", "note", `The first ${MAX_ROWS} of ${shown.length} entities; save them to see all.`)] : [];
  get("table").lastElementChild.replaceChildren(table, ...more);
}

/** Draw the tree of the sentence at `treePlace`. */
function drawSentence() {
  const at = treePlace;
  const block = blocks.find(({ start, text }) => at !== null && start <= at && at < start + text.length);
  const sentence = block && cached(block)?.sentences.find(({ start, end }) => start <= at - block.start && at - block.start < end);
  if (block && !cached(block)) return; // until the answer arrives
  get("tree").hidden = !sentence;
  if (!sentence) return;
  const scroll = get("tree").querySelector(".scroll");
  scroll.replaceChildren(drawTree(block.text, sentence, filterEntities(entitiesOf(block), state), color));
}

function showTree(at) {
  treePlace = at;
  drawSentence();
  if (get("tree").hidden) get("status").textContent = "This model has no tree of this sentence.";
  else get("tree").scrollIntoView({ block: "nearest" });
}

// What the user does

source.addEventListener("input", () => {
  clearTimeout(timer);
  closeMenu();
  timer = setTimeout(readSource, PAUSE);
});

function readSource() {
  const text = source.value.toWellFormed?.() ?? source.value;
  if (text === state.text) return;
  editText(text);
  get("changes").hidden = true;
  refresh();
}

function setText(text, decisions) {
  replaceText(text, decisions);
  source.value = text;
  source.scrollTop = 0;
  treePlace = null;
  get("changes").hidden = true;
}

get("clear").addEventListener("click", () => {
  setText("");
  refresh();
  source.focus();
});
get("examples").append(...Object.keys(EXAMPLES).map((name) => element("option", "", name)));
get("examples").addEventListener("change", ({ target }) => {
  setText(EXAMPLES[target.value]);
  refresh();
  target.selectedIndex = 0;
});

function setThreshold(threshold) {
  state.threshold = threshold;
  get("threshold").value = threshold;
}

let frame = 0;
get("threshold").addEventListener("input", ({ target }) => {
  state.threshold = Number(target.value);
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
});
get("probabilities").addEventListener("change", ({ target }) => output.classList.toggle("with-probabilities", target.checked));

function toggleLabel(chip, label) {
  const hide = !state.hidden.delete(label);
  if (hide) state.hidden.add(label);
  chip.ariaPressed = String(!hide);
  draw();
}

function goBack() {
  if (!state.history.length) return;
  closeMenu();
  if (undo()) source.value = state.text;
  refresh("Undone.");
}
get("undo").addEventListener("click", goBack);

/** The menu of a box, or of selected words. */
function offer(rectangle, block, span, entity = null) {
  const place = { start: block.start + span.start, end: block.start + span.end };
  openMenu(rectangle, place, {
    shown: entity?.labels,
    head: entity?.head && block.text.slice(entity.head.start, entity.head.end),
    labels,
    color,
    onDecide: refresh,
    onTree: cached(block)?.sentences.length ? () => showTree(place.start) : null,
  });
}

function offerBox(box) {
  const { block } = box.closest(".block");
  offer(box.getBoundingClientRect(), block, box.entity, box.entity);
}

function offerSelection() {
  let span = null;
  let rectangle = source.getBoundingClientRect();
  const selection = getSelection();
  if (document.activeElement === source && source.selectionStart < source.selectionEnd) {
    readSource();
    span = snapToWords(state.text, source.selectionStart, source.selectionEnd);
  } else if (selection.rangeCount && !selection.isCollapsed && output.contains(selection.anchorNode)) {
    const range = selection.getRangeAt(0);
    rectangle = range.getBoundingClientRect();
    const [a, b] = [[range.startContainer, range.startOffset], [range.endContainer, range.endOffset]].map(([node, offset]) =>
      output.contains(node) ? findPosition(output, node, offset) : null);
    span = a && b && snapToWords(state.text, a.element.block.start + a.at, b.element.block.start + b.at);
  }
  const block = span && blocks.find(({ start, text }) => start <= span.start && span.end <= start + text.length);
  if (!block) {
    get("status").textContent = span ? "An entity lies within one paragraph." : "Select words in either text first.";
    return;
  }
  const inBlock = { start: span.start - block.start, end: span.end - block.start };
  const shown = filterEntities(entitiesOf(block), state);
  offer(rectangle, block, inBlock, shown.find(({ start, end }) => start === inBlock.start && end === inBlock.end));
}

get("mark").addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the selection
get("mark").addEventListener("click", offerSelection);
output.addEventListener("pointerup", () => setTimeout(() => {
  if (!getSelection().isCollapsed) offerSelection();
}));
output.addEventListener("click", ({ target }) => {
  if (target.sentence) return showTree(target.closest(".block").block.start + target.sentence.start);
  const box = target.closest(".e");
  if (box && getSelection().isCollapsed) offerBox(box);
});

output.addEventListener("keydown", (event) => {
  const box = event.target.closest(".e");
  if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
  const { block } = box.closest(".block");
  const place = { start: block.start + box.entity.start, end: block.start + box.entity.end };
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const quote = `“${state.text.slice(place.start, place.end)}”`;
  if (step) {
    const all = [...output.querySelectorAll(".e")];
    const next = all[all.indexOf(box) + step];
    if (next) focusBox(next);
  } else if (event.key === "Enter" || event.key === " ") offerBox(box);
  else if (event.key === "c") { confirmEntity(place, box.entity.labels); refresh(`Confirmed ${quote}.`); }
  else if (event.key === "r" || event.key === "Delete") { rejectEntity(place); refresh(`Rejected ${quote}.`); }
  else if (event.key === "t") showTree(place.start);
  else return;
  event.preventDefault();
});

function focusBox(box) {
  for (const other of output.querySelectorAll('.e[tabindex="0"]')) other.tabIndex = -1;
  box.tabIndex = 0;
  box.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.altKey && event.code === "KeyM") offerSelection();
  else if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.target.matches("textarea, input")) goBack();
  else return;
  event.preventDefault();
});

get("tree").querySelector("button").addEventListener("click", () => { treePlace = null; drawSentence(); });
get("table").addEventListener("toggle", drawTable);
get("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(event.target.querySelector("input").value);
  get("key").close();
  start();
});

// Files and links

const content = () => toFile(get("format").value, state.text, shownEntities());

async function copyText(text, done) {
  try {
    await copy(text);
    get("status").textContent = done;
  } catch (error) {
    get("status").textContent = `Could not copy: ${error.message}`;
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

function readLink() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const threshold = Number(parts.get("threshold"));
  if (threshold > 0 && threshold < 1) setThreshold(threshold);
  let decisions = [];
  try {
    decisions = JSON.parse(parts.get("decisions") ?? "[]");
  } catch { /* a broken link: its text alone */ }
  if (parts.get("text")) setText(parts.get("text"), decisions);
}

addEventListener("hashchange", () => {
  readLink();
  refresh();
});
addEventListener("online", () => refresh());
readLink();
if (!state.text) setText(source.value || Object.values(EXAMPLES)[0]);
start();
