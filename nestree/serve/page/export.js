// What the page shows as files: the JSON of nestree (document.schema.json), JSON lines, and brat.

import { countPoints } from "./text.js";

/** The document as `Document.to_dict` writes it; entities are ordered by start, the longer first. */
export function toDocument(text, entities) {
  const { toPoint } = countPoints(text);
  const span = ({ start, end }) => ({ start: toPoint(start), end: toPoint(end), text: text.slice(start, end) });
  let open = [];
  const written = entities.map((entity, k) => {
    open = open.filter((at) => entities[at].end > entity.start);
    const around = open.filter((at) => entities[at].end >= entity.end);
    const smallest = (a, b) => (entities[b].end - entities[b].start < entities[a].end - entities[a].start ? b : a);
    const parent = around.length ? around.reduce(smallest) : null;
    open.push(k);
    const labels = entity.labels.map(({ label, score }) => ({ label, score }));
    const head = entity.head ? span(entity.head) : null;
    return { ...span(entity), ...labels[0], labels, head, depth: around.length, parent };
  });
  return { text, entities: written };
}

/** The lines of an .ann file: one for each label of an entity; brat cuts spans at line breaks into fragments. */
function toBrat(text, entities) {
  const { toPoint } = countPoints(text);
  const lines = [];
  for (const { start, end, labels } of entities) {
    const fragments = [...text.slice(start, end).matchAll(/[^\r\n]+/g)].filter(([line]) => line.trim());
    const at = fragments.map(({ 0: line, index }) =>
      `${toPoint(start + index)} ${toPoint(start + index + line.length)}`).join(";");
    const phrase = fragments.map(([line]) => line.replaceAll("\t", " ")).join(" ");
    for (const { label } of labels) lines.push(`T${lines.length + 1}\t${label.replace(/\s/g, "_")} ${at}\t${phrase}\n`);
  }
  return lines.join("");
}

/** The content of a file of this format. */
export function toFile(format, text, entities) {
  if (format === "json") return JSON.stringify(toDocument(text, entities), null, 2) + "\n";
  if (format === "jsonl") return JSON.stringify(toDocument(text, entities)) + "\n";
  return format === "ann" ? toBrat(text, entities) : text;
}

export function download(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "text/plain;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Copy to the clipboard, also on pages without TLS, where browsers have no clipboard interface. */
export async function copy(content) {
  if (navigator.clipboard) return navigator.clipboard.writeText(content);
  const area = document.body.appendChild(document.createElement("textarea"));
  area.value = content;
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser does not allow it");
}
