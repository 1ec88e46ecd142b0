// The menu of an entity or of selected words, and small builders of elements.

import { confirm, findDecision, reject, state, withdraw } from "./state.js";
import { formatProbability, quote } from "./text.js";

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

export const colorClass = (label) => `c${state.colors.get(label) ?? 0}`;

export function closeMenu() {
  menu.hidePopover();
}

/**
 * Open the menu of a span of the text at a rectangle. `entity` is what is drawn there, or undefined; `onTree`: draws the
 * tree of the sentence, or is null.
 */
export function openMenu(rectangle, span, entity, onTree) {
  const item = (text, action, className) => button(text, () => {
    closeMenu();
    action();
  }, className);
  const title = element("p", "quote");
  title.append(element("bdi", "", quote(state.text, span)));
  menu.replaceChildren(title);
  if (entity?.head) menu.append(element("p", "note", `head: ${quote(state.text, entity.head)}`));
  const shown = entity?.labels ?? [];
  for (const { label, score, known } of shown) {
    const row = menu.appendChild(element("div", `row ${colorClass(label)}`));
    const certainty = known ? "confirmed" : score === null ? "" : formatProbability(score);
    const decision = findDecision(span, label);
    row.append(
      element("b", "chip", label),
      element("span", "push", certainty),
      decision ? item("Withdraw", () => withdraw(decision)) : item("Confirm", () => confirm(span, [label])),
      item("Reject", () => reject(span, shown.length > 1 ? label : null)),
    );
  }
  menu.append(element("p", "note", shown.length ? "It is something else:" : "Add an entity:"));
  const chips = menu.appendChild(element("div", "chips"));
  for (const label of state.labels.filter((label) => shown.every((one) => one.label !== label))) {
    chips.append(item(label, () => confirm(span, [label], true), `chip ${colorClass(label)}`));
  }
  if (onTree) menu.append(item("Tree of the sentence", onTree, "plain"));
  menu.showPopover();
  const { width, height } = menu.getBoundingClientRect();
  const below = rectangle.bottom + 6 + height <= innerHeight;
  menu.style.left = `${Math.min(Math.max(8, rectangle.left), innerWidth - width - 8)}px`;
  menu.style.top = `${below ? rectangle.bottom + 6 : Math.max(8, rectangle.top - height - 6)}px`;
  menu.querySelector("button")?.focus();
}
