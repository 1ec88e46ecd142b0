// The text, what the user has decided about it, and the way back. Each decision is announced by the event "decided".

import { mapEdit, moveSpan, quote, splitBlocks } from "./text.js";

export const state = {
  text: "",
  // {kind: "known" or "forbidden", start, end, label, only}. A forbidden span without a label is no entity at all; a
  // known span with `only` has no other label.
  decisions: [],
  history: [], // earlier {decisions}; {decisions, text} where the text was replaced
  threshold: 0.4, // until the server says that of its model
  hidden: new Set(), // labels
  labels: [], // of the model
  colors: new Map(), // indices by label
  blocks: [], // what is drawn
  marks: new Map(), // "start-end" of a box -> "new" or "changed"
  treeAt: null, // a position in the sentence whose tree is drawn
};

const sameSpan = (a, b) => a.start === b.start && a.end === b.end;

function change(decisions, message) {
  state.history.push({ decisions: state.decisions });
  state.decisions = decisions;
  document.dispatchEvent(new CustomEvent("decided", { detail: message }));
}

/** The decisions that stay when a span is decided: those about other spans, and about its other labels. */
function otherDecisions(span, labels, only) {
  return state.decisions.filter((decision) => !sameSpan(decision, span) ||
    (labels.length && !only && !decision.only && decision.label !== null && !labels.includes(decision.label)));
}

/** The span is an entity with these labels; `only`: with no others. */
export function confirm({ start, end }, labels, only = false) {
  const known = labels.map((label) => ({ kind: "known", start, end, label, only }));
  const message = `${only ? "Set" : "Confirmed"} ${quote(state.text, { start, end })} as ${labels.join(", ")}.`;
  change([...otherDecisions({ start, end }, labels, only), ...known], message);
}

/** The span is not an entity, or not with this label. */
export function reject({ start, end }, label = null) {
  const others = otherDecisions({ start, end }, label === null ? [] : [label], false);
  const message = `Rejected ${quote(state.text, { start, end })} as ${label ?? "an entity"}.`;
  change([...others, { kind: "forbidden", start, end, label, only: false }], message);
}

export function withdraw(decision) {
  const message = `Withdrew what was decided about ${quote(state.text, decision)}.`;
  change(state.decisions.filter((other) => other !== decision), message);
}

export function findDecision(span, label) {
  return state.decisions.find((decision) => sameSpan(decision, span) && decision.label === label);
}

/** Go back one step; whether the text changed. */
export function undo() {
  const { decisions, text } = state.history.pop();
  state.decisions = decisions;
  if (text !== undefined) state.text = text;
  return text !== undefined;
}

/** Take an edited text; decisions about what was not edited stay. */
export function editText(text) {
  const mapped = mapEdit(state.text, text);
  const move = (decisions) => decisions.map(mapped).filter(Boolean);
  state.text = text;
  state.decisions = move(state.decisions);
  for (let k = state.history.length - 1; k >= 0 && state.history[k].text === undefined; k--) {
    state.history[k].decisions = move(state.history[k].decisions);
  }
}

/** Take another text. */
export function replaceText(text, decisions = []) {
  if (state.text.trim()) state.history.push({ text: state.text, decisions: state.decisions });
  Object.assign(state, { text, decisions, treeAt: null });
}

/** The blocks of the text with the decisions about each; `key` says what the server is asked. */
export function currentBlocks() {
  return splitBlocks(state.text).map(({ start, text }) => {
    const mine = state.decisions.filter((decision) => start <= decision.start && decision.end <= start + text.length);
    const decisions = mine.map((decision) => moveSpan(decision, -start));
    const asked = decisions.map(({ kind, start, end, label, only }) => [kind, start, end, label, only].join(" "));
    return { start, text, decisions, key: [text, ...asked.sort()].join("\n") };
  });
}
