// The setup: options by their keywords. The address holds it, so that it can be kept and shared; a dropped file is in the
// browser's history beside it.

const START = { model: "qwen2.5-vl-7b", gpu: "rtx-4090:2", method: "lora" };
export const MAX_FILE_BYTES = 2 ** 20;
const DROPPED = "dropped file";

export let options = {};
export let files = {}; // option: { name, content }
let keptBesideConfig = [];
let listeners = [];

export function keepBesideConfig(names) {
  keptBesideConfig = names;
}

export function onChange(listener) {
  listeners.push(listener);
}

function tell(fromAddress) {
  for (const listener of listeners) listener(fromAddress);
}

// Values are texts in the address; `kinds` says of an option what it is.
export function readAddress(kinds) {
  const query = new URLSearchParams(location.search);
  options = query.size ? {} : { ...START };
  files = history.state?.files ?? {};
  for (const [name, text] of query) {
    if (files[name] && text === DROPPED) continue;
    options[name] = text === DROPPED ? null : valueOf(text, kinds[name]);
  }
  tell(true);
}

function valueOf(text, kind) {
  if (kind === "switch") return text === "true" ? true : text === "false" ? false : text;
  if ((kind === "whole" || kind === "number") && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  return text;
}

// `isStep`: one step back leads to what was before; a slider that moves replaces.
export function change(values, isStep = true) {
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") delete options[name];
    else options[name] = value;
    delete files[name];
  }
  keep(isStep);
  tell(false);
}

// A trainer's configuration decides all that `keepBesideConfig` does not name.
export function dropFile(option, name, content) {
  files = { ...files, [option]: { name, content } };
  if (option === "config") options = Object.fromEntries(keptBesideConfig.filter((one) => one in options).map((one) => [one, options[one]]));
  delete options[option];
  keep(true);
  tell(false);
}

export function removeFile(option) {
  const { [option]: _, ...others } = files;
  files = others;
  if (!files.model && !files.config && !options.model) options.model = START.model;
  keep(true);
  tell(false);
}

export function replace(newOptions, newFiles) {
  options = { ...newOptions };
  files = newFiles;
  keep(true);
  tell(false);
}

function keep(isStep) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options)) query.set(name, String(value));
  for (const name of Object.keys(files)) query.set(name, DROPPED);
  const address = `${location.pathname}?${query}`;
  if (isStep) history.pushState({ files: { ...files } }, "", address);
  else history.replaceState({ files: { ...files } }, "", address);
}

// What the planner is asked with.
export function asked() {
  const contents = Object.fromEntries(Object.entries(files).map(([name, file]) =>
    [name, name === "config" ? { name: file.name, text: file.content } : file.content]));
  return { ...options, ...contents };
}
