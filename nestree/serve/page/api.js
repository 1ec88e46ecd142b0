// Requests to the server, with the API key, and its answers in the page's units.

import { state } from "./state.js";
import { countPoints } from "./text.js";

export const LOWEST_THRESHOLD = 0.05; // of what the server is asked for; the page filters above it
const MAX_CACHED = 2000;
const KEY = "nestree-api-key";

/** What the server answered instead of a result; status 0: it did not answer. */
export class RequestError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    Object.assign(this, { status, retryAfter });
  }
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** The JSON of an answer; raises RequestError. */
export async function request(path, body = undefined, signal = undefined) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal, cache: "no-store" };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The server does not answer.");
  }
  const content = await answer.json().catch(() => null);
  if (answer.ok && content) return content;
  const message = content?.error?.message ?? `The server answered ${answer.status} ${answer.statusText}.`;
  throw new RequestError(answer.status, message, Number(answer.headers.get("Retry-After")) || null);
}

const cache = new Map();

/** The document of a block if the server has answered it before. */
export function cached(block) {
  return cache.get(block.key);
}

/** Ask for the documents of blocks, which `cached` then returns; the name of the model. */
export async function recognize(blocks, signal) {
  const spans = (block, kind) => {
    const { toPoint } = countPoints(block.text);
    return block.decisions.flatMap(({ kind: own, start, end, label, only }) => {
      const span = [toPoint(start), toPoint(end)];
      if (own === kind) return [label ? [...span, label] : span];
      return only ? state.labels.filter((other) => other !== label).map((other) => [...span, other]) : [];
    });
  };
  const { model, documents } = await request("/v1/entities", {
    texts: blocks.map((block) => block.text),
    known: blocks.map((block) => spans(block, "known")),
    forbidden: blocks.map((block) => spans(block, "forbidden")),
    threshold: LOWEST_THRESHOLD,
    trees: true,
  }, signal);
  blocks.forEach((block, k) => cache.set(block.key, readDocument(documents[k], block)));
  for (const key of cache.keys()) {
    if (cache.size <= MAX_CACHED) break;
    cache.delete(key);
  }
  return model;
}

function readDocument(document, block) {
  if (document.error) return { error: document.error.message ?? String(document.error), entities: [], sentences: [] };
  const { toUnit } = countPoints(block.text);
  const span = (value) => value && { start: toUnit(value.start), end: toUnit(value.end) };
  const isKnown = (at, label) => block.decisions.some((decision) =>
    decision.kind === "known" && decision.start === at.start && decision.end === at.end && decision.label === label);
  const entities = document.entities.map((entity) => {
    const at = span(entity);
    const labels = entity.labels.map(({ label, score }) => ({ label, score, known: isKnown(at, label) }));
    return { ...at, labels, head: span(entity.head) };
  });
  const sentences = [];
  for (const constituent of document.tree?.constituents ?? []) {
    const at = { ...span(constituent), head: span(constituent.head), probability: constituent.probability };
    if (!sentences.length || at.start >= sentences.at(-1).end) {
      sentences.push({ start: at.start, end: at.end, constituents: [] });
    }
    sentences.at(-1).constituents.push(at);
  }
  return { entities, sentences };
}
