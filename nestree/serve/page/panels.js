// What stands below the text: what a decision changed, the decisions, and a table of the entities.

import { button, colorClass, element } from "./menu.js";
import { confirm, reject, state, withdraw } from "./state.js";
import { formatProbability, quote, visibleText } from "./text.js";

const MAX_ROWS = 500; // of the table
const CHANGE = 0.05; // of a probability that is worth a mark

function describe(sign, span, label, after) {
  const item = element("span", "item", `${sign} `);
  const name = element("b", label ? `chip ${colorClass(label)}` : "", label ?? "no entity");
  item.append(name, " ", element("bdi", "", quote(state.text, span)), " ", after);
  return item;
}

/** The decisions, each with a button to withdraw it. */
export function drawDecisions() {
  const panel = document.getElementById("decisions");
  panel.hidden = !state.decisions.length;
  panel.replaceChildren(element("span", "note", "Decided:"), ...state.decisions.map((decision) => {
    const remove = button("×", () => withdraw(decision), "plain");
    remove.ariaLabel = remove.title = "Withdraw";
    return describe(decision.kind === "known" ? "✓" : "✗", decision, decision.label, remove);
  }));
}

/** List what a decision has changed; marks for its boxes: "start-end" -> "new" or "changed". */
export function drawChanges(before, after, message) {
  const index = (entities) => new Map(entities.flatMap((entity) =>
    entity.labels.map((one) => [`${entity.start}-${entity.end} ${one.label}`, { entity, score: 1, ...one }])));
  const [old, now] = [index(before), index(after)];
  const marks = new Map();
  const items = [];
  for (const [key, { entity, label, score, known }] of now) {
    const place = key.split(" ")[0];
    const earlier = old.get(key);
    if (!earlier) {
      marks.set(place, "new");
      items.push(describe("+", entity, label, formatProbability(score)));
    } else if (!known && Math.abs(earlier.score - score) >= CHANGE) {
      if (!marks.has(place)) marks.set(place, "changed");
      const numbers = `${formatProbability(earlier.score)} → ${formatProbability(score)}`;
      items.push(describe("", entity, label, numbers));
    }
  }
  for (const [key, { entity, label }] of old) {
    if (!now.has(key)) items.push(describe("−", entity, label, ""));
  }
  const panel = document.getElementById("changes");
  panel.hidden = false;
  const summary = `${message} ${items.length ? "Changed:" : "Nothing else changed."}`;
  panel.replaceChildren(element("span", "note", summary), ...items);
  return marks;
}

/** A table of the entities, and a note if it does not have all of them. */
export function entityTable(entities) {
  const table = element("table");
  const header = table.createTHead().insertRow();
  for (const name of ["text", "label", "probability", "head", "decide"]) {
    header.append(Object.assign(element("th", name === "probability" ? "num" : "", name), { scope: "col" }));
  }
  const body = table.createTBody();
  const textOf = (span) => element("bdi", "", span ? visibleText(state.text.slice(span.start, span.end)) : "");
  for (const entity of entities.slice(0, MAX_ROWS)) {
    const { labels, head } = entity;
    const row = body.insertRow();
    row.insertCell().append(textOf(entity));
    row.insertCell().append(labels.map(({ label }) => label).join(", "));
    row.insertCell().append(labels.map(({ score }) => score?.toFixed(3) ?? "").join(", "));
    row.cells[2].className = "num";
    row.insertCell().append(textOf(head));
    const known = labels.every((one) => one.known);
    const first = known ? "confirmed" : button("Confirm", () => confirm(entity, labels.map((one) => one.label)));
    row.insertCell().append(first, " ", button("Reject", () => reject(entity)));
  }
  if (entities.length <= MAX_ROWS) return [table];
  const note = `These are the first ${MAX_ROWS} of ${entities.length} entities; save them to see all.`;
  return [table, element("p", "note", note)];
}
