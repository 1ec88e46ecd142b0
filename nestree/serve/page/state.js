// The text, what the user has decided about it, and the way back.

import { mapEdit, splitBlocks } from "./text.js";

export const state = {
  text: "",
  // {kind: "known" or "forbidden", start, end, label, only}; without label, a forbidden span is no entity at all; `only`: a
  // known span has no other label
  decisions: [],
  history: [], // earlier {decisions}; {decisions, text} where the text was replaced
  threshold: 0.4,
  hidden: new Set(), // labels
};

const sameSpan = (a, b) => a.start === b.start && a.end === b.end;
const move = (decisions, mapped) => decisions.map(mapped).filter(Boolean);

/** Take an edited text; decisions about what was not edited stay. */
export function editText(text) {
  const mapped = mapEdit(state.text, text);
  state.text = text;
  state.decisions = move(state.decisions, mapped);
  for (let k = state.history.length - 1; k >= 0 && state.history[k].text === undefined; k--) {
    state.history[k].decisions = move(state.history[k].decisions, mapped);
  }
}

/** Take another text. */
export function replaceText(text, decisions = []) {
  if (state.text.trim()) state.history.push({ text: state.text, decisions: state.decisions });
  Object.assign(state, { text, decisions });
}

/** Decide about a span, or about one label of it. What contradicts this and was decided before is dropped. */
export function decide(kind, span, label = null, only = false) {
  const { start, end } = span;
  state.history.push({ decisions: state.decisions });
  const kept = state.decisions.filter((other) => !sameSpan(other, span) ||
    (label !== null && !only && other.label !== null && !other.only && other.label !== label));
  state.decisions = [...kept, { kind, start, end, label, only }];
}

/** Forget a decision. */
export function withdraw(decision) {
  state.history.push({ decisions: state.decisions });
  state.decisions = state.decisions.filter((other) => other !== decision);
}

/** Go back one step; whether the text changed. */
export function undo() {
  const { decisions, text } = state.history.pop();
  state.decisions = decisions;
  if (text !== undefined) state.text = text;
  return text !== undefined;
}

export function findDecision(span, label) {
  return state.decisions.find((decision) => sameSpan(decision, span) && decision.label === label);
}

/** The blocks of the text with the decisions about each; `key` says what the server is asked. */
export function currentBlocks() {
  return splitBlocks(state.text).map(({ start, text }) => {
    const mine = state.decisions.filter((decision) => start <= decision.start && decision.end <= start + text.length);
    const decisions = mine.map((decision) => ({ ...decision, start: decision.start - start, end: decision.end - start }));
    return { start, text, decisions, key: `${text}\n${decisions.map((d) => Object.values(d)).sort().join(";")}` };
  });
}
