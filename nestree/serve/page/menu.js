// The menu of an entity or of selected words.

import { formatProbability, visibleText } from "./text.js";
import { decide, findDecision, state, withdraw } from "./state.js";

const menu = document.getElementById("menu");

export function element(tag, className = "", content = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = content;
  return made;
}

export function button(text, onClick, className = "") {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

export function closeMenu() {
  menu.hidePopover();
}

/** Confirm or reject the labels of an entity without the menu. */
export function confirmEntity(span, labels) {
  for (const { label } of labels) decide("known", span, label);
}

export function rejectEntity(span) {
  decide("forbidden", span);
}

/**
 * Open the menu at a rectangle. `span` is in the text of the page, `shown` are the labels of its box, if there is one.
 * `onDecide(message)` is called after a decision, `onTree()` if the tree is to be drawn.
 */
export function openMenu(rectangle, span, { shown = [], head, labels, color, onDecide, onTree }) {
  const act = (message, change) => () => {
    closeMenu();
    change();
    onDecide(message);
  };
  const text = visibleText(state.text.slice(span.start, span.end));
  const quote = `“${text.length > 80 ? `${text.slice(0, 79)}…` : text}”`;
  const title = element("p", "quote");
  title.append(element("bdi", "", quote));
  menu.replaceChildren(title);
  if (head) menu.append(element("p", "note", `head: ${head}`));
  for (const { label, score, known } of shown) {
    const row = element("div", `row c${color(label)}`);
    const certainty = known ? "confirmed" : score === null ? "" : formatProbability(score);
    row.append(element("b", "chip", label), element("span", "push", certainty));
    const decision = findDecision(span, label);
    if (decision) row.append(button("Withdraw", act(`Withdrew ${label} of ${quote}.`, () => withdraw(decision))));
    else row.append(button("Confirm", act(`Confirmed ${quote} as ${label}.`, () => decide("known", span, label))));
    const alone = shown.length === 1;
    row.append(button("Reject", act(`Rejected ${quote} as ${alone ? "an entity" : label}.`,
      () => decide("forbidden", span, alone ? null : label))));
    menu.append(row);
  }
  const others = labels.filter((label) => !shown.some((one) => one.label === label));
  menu.append(element("p", "note", shown.length ? "It is something else:" : "Add an entity:"));
  const chips = menu.appendChild(element("div", "chips"));
  for (const label of others) {
    const choose = act(`Added ${quote} as ${label}.`, () => decide("known", span, label, true));
    chips.append(button(label, choose, `chip c${color(label)}`));
  }
  if (onTree) menu.append(button("Tree of the sentence", () => { closeMenu(); onTree(); }, "plain"));
  menu.showPopover();
  const { width, height } = menu.getBoundingClientRect();
  const below = rectangle.bottom + 6 + height <= innerHeight;
  const left = Math.min(Math.max(8, rectangle.left), innerWidth - width - 8);
  const top = below ? rectangle.bottom + 6 : Math.max(8, rectangle.top - height - 6);
  menu.style.left = `${left}px`;
  menu.style.top = `${top}px`;
  menu.querySelector("button")?.focus();
}
