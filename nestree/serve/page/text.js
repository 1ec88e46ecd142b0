// Positions in text. The page counts UTF-16 units, as JavaScript does; the server counts code points.

const MAX_WHOLE = 4000; // characters; longer texts are sent in blocks
const LONG_BLOCK = 1000; // characters after which a block ends with a sentence, if no line ends
// Blank lines, line ends after a sentence, and blanks that certainly lie between sentences.
const BLOCK_END = /\n[^\S\n]*\n\s*|(?<=[.!?…。]["'”’)\]]?)\n|(?<=\p{Ll}{4}[.!?]) (?=\p{Lu})/gu;
const WORD_CHARACTER = /[\p{L}\p{N}\p{M}]/u;
const WITHOUT_BLANKS = /\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Thai}|\p{Script=Khmer}/u;

/** Functions from UTF-16 units to code points and back, for one text. */
export function countPoints(text) {
  if (!/[\ud800-\udfff]/.test(text)) return { toPoint: (unit) => unit, toUnit: (point) => point };
  const points = new Uint32Array(text.length + 1);
  const units = [];
  let unit = 0;
  for (const character of text) {
    points.fill(units.length, unit, unit + character.length);
    units.push(unit);
    unit += character.length;
  }
  points[unit] = units.length;
  units.push(unit);
  return { toPoint: (at) => points[at], toUnit: (at) => units[at] };
}

/** A long text in blocks that end with a paragraph, so that an edit or a decision concerns a short block only. */
export function splitBlocks(text) {
  if (text.length <= MAX_WHOLE) return text ? [{ start: 0, text }] : [];
  const blocks = [];
  let start = 0;
  for (const { index, 0: end } of [...text.matchAll(BLOCK_END), { index: text.length, 0: "" }]) {
    if (end === " " && index - start < LONG_BLOCK) continue;
    const block = text.slice(start, index + end.length);
    if (block.trim()) blocks.push({ start, text: block });
    else if (blocks.length) blocks.at(-1).text += block;
    else continue;
    start += block.length;
  }
  return blocks;
}

/** A function that moves a span of the old text to its place in the new one; null: the edit has changed it. */
export function mapEdit(before, after) {
  const shorter = Math.min(before.length, after.length);
  let prefix = 0;
  while (prefix < shorter && before[prefix] === after[prefix]) prefix++;
  let suffix = 0;
  while (suffix < shorter - prefix && before.at(-1 - suffix) === after.at(-1 - suffix)) suffix++;
  const shift = after.length - before.length;
  return (span) => {
    if (span.end <= prefix) return span;
    if (span.start < before.length - suffix) return null;
    return moveSpan(span, shift);
  };
}

/** The span, and its head if it has one, moved by a number of units. */
export function moveSpan(span, by) {
  const moved = { ...span, start: span.start + by, end: span.end + by };
  if (span.head) moved.head = moveSpan(span.head, by);
  return moved;
}

/** The words that a selection touches: without white space at its ends, and without half a word. */
export function snapToWords(text, start, end) {
  while (start < end && /\s/.test(text[start])) start++;
  while (start < end && /\s/.test(text[end - 1])) end--;
  if (start === end) return null;
  const inWord = (at) => {
    const [a, b] = [characterBefore(text, at), String.fromCodePoint(text.codePointAt(at) ?? 32)];
    return [a, b].every((c) => WORD_CHARACTER.test(c) && !WITHOUT_BLANKS.test(c));
  };
  while (start > 0 && inWord(start)) start -= characterBefore(text, start).length;
  while (end < text.length && inWord(end)) end += String.fromCodePoint(text.codePointAt(end)).length;
  return { start, end };
}

function characterBefore(text, at) {
  const pair = text.slice(Math.max(0, at - 2), at);
  return pair.codePointAt(0) > 0xffff ? pair : pair.slice(-1) || " ";
}

/** "ltr" or "rtl", by the first letter. */
export function textDirection(text) {
  const letter = text.match(/\p{L}/u)?.[0] ?? "";
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/.test(letter) ? "rtl" : "ltr";
}

/** Text as it is drawn: control characters and halves of surrogate pairs become U+FFFD. */
export function visibleText(text) {
  return text.replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\p{Surrogate}/gu, "\ufffd");
}

/** Two decimals, without the leading zero. */
export function formatProbability(probability) {
  return probability.toFixed(2).replace(/^0/, "");
}

/** A span of a text in quotation marks, cut if it is long. */
export function quote(text, { start, end }) {
  const quoted = visibleText(text.slice(start, end));
  return `“${quoted.length > 80 ? `${quoted.slice(0, 79)}…` : quoted}”`;
}
