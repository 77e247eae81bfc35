// The answer in words: the verdict, what would help, sentences, the command and the files.

import { copyButton, element, table } from "./dom.js";
import * as state from "./state.js";

const VERDICTS = { fits: "fits", tight: "tight", does_not_fit: "does not fit" };

export function showVerdict(place, answer) {
  const { verdict } = answer.document;
  const sentence = answer.verdict.slice(answer.verdict.indexOf(":") + 1).trim();
  place.replaceChildren(
    element("p", { class: "verdict" }, element("strong", { class: `badge ${verdict}` }, VERDICTS[verdict]), ` ${sentence}`),
    element("p", {}, answer.heading),
    ...answer.cautions.map((text) => element("p", { class: "caution" }, text)),
    ...help(answer),
    element("p", { class: "buttons" }, element("button", { type: "button", onclick: () => state.keepSetup() }, "Keep to compare")),
  );
}

// Where it does not fit: the least change, which one press makes, and the cheapest other machine.
function help(answer) {
  if (!answer.hints) return answer.document.verdict === "does_not_fit" ? [element("p", { class: "help" }, "Looking for what would fit …")] : [];
  const nodes = answer.hints.way_out.map((text) => element("p", { class: "way-out" }, text));
  const buttons = [];
  if (answer.apply) {
    buttons.push(element("button", { type: "button", class: "main", onclick: () => state.change(answer.apply) }, "Make it fit"));
  }
  const other = answer.document.other_machine;
  if (other) {
    const values = { gpu: `${other.gpu}:${other.num_gpus}`, num_nodes: other.num_nodes > 1 ? other.num_nodes : null };
    buttons.push(element("button", { type: "button", onclick: () => state.change(values) }, "Take the other machine"));
  }
  return buttons.length ? [...nodes, element("p", { class: "buttons" }, ...buttons)] : nodes;
}

export function showDetails(place, answer) {
  const lines = [`setup: ${answer.setup}`, ...(answer.hints?.estimate ?? []).map((text) => `hint: ${text}`), ...answer.lines];
  place.replaceChildren(element("ul", { class: "lines" }, ...lines.map((line) => element("li", {}, line.trim()))));
}

// How the configuration of a trainer was read: every key of it.
export function showReading(place, reading) {
  if (reading === undefined) return; // a first look says nothing of it
  if (reading === null) {
    place.replaceChildren();
    return;
  }
  const rows = (settings) => Object.entries(settings).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]);
  place.replaceChildren(
    element("details", { class: "block" },
      element("summary", {}, `${reading.source}, as ${reading.trainer} reads it`),
      table(["from the file", "value"], rows(reading.said), "Keys of the file"),
      table(["default of the trainer", "value"], rows(reading.defaults), "Defaults of the trainer"),
      reading.without_effect.length ? element("p", {}, `No effect on memory or time: ${reading.without_effect.join(", ")}.`) : null,
      element("ul", { class: "lines" }, reading.notes.map((note) => element("li", {}, note)))),
  );
}

export function showFiles(place, answer) {
  const blocks = [block("command", answer.command, null)];
  if (answer.no_files) blocks.push(element("p", { class: "help" }, answer.no_files));
  for (const [name, text] of Object.entries(answer.files)) blocks.push(block(name, text, name));
  place.replaceChildren(...blocks);
}

function block(title, text, file) {
  const buttons = [copyButton(text, "copy")];
  if (file) buttons.push(element("button", { type: "button", onclick: () => download(file, text) }, "download"));
  const shown = element("pre", { tabindex: "0", "aria-label": title }, text);
  if (!file) return element("div", { class: "block" }, shown, element("p", { class: "buttons" }, ...buttons));
  return element("details", { class: "block" }, element("summary", {}, title), element("p", { class: "buttons" }, ...buttons), shown);
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
