// The setup: options by their keywords. The address holds it, so that it can be kept and shared; a dropped file is in the
// browser's history beside it. A second setup that is kept for comparison is in the address too, as a text of its own.

const START = { model: "qwen2.5-vl-7b", gpu: "rtx-4090:2", method: "lora" };
export const MAX_FILE_BYTES = 2 ** 20;
const DROPPED = "dropped file";
const KEPT = "kept"; // no option's name

export let options = {};
export let files = {}; // option: { name, content }
export let kept = null; // { options, files } of the setup that is compared with
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
  const text = query.get(KEPT);
  query.delete(KEPT);
  ({ options, files } = query.size ? readQuery(query, kinds, history.state?.files ?? {}) : { options: { ...START }, files: {} });
  kept = text === null ? null : readQuery(new URLSearchParams(text), kinds, history.state?.keptFiles ?? {});
  tell(true);
}

function readQuery(query, kinds, dropped) {
  const found = {};
  for (const [name, text] of query) {
    if (dropped[name] && text === DROPPED) continue;
    found[name] = text === DROPPED ? null : valueOf(text, kinds[name]);
  }
  return { options: found, files: dropped };
}

function queryOf(setup) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(setup.options)) query.set(name, String(value));
  for (const name of Object.keys(setup.files)) query.set(name, DROPPED);
  return query;
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

// The setup is kept for comparison with those that come after it.
export function keepSetup() {
  kept = { options: { ...options }, files: { ...files } };
  keep(true);
  tell(false);
}

export function forgetKept() {
  kept = null;
  keep(true);
  tell(false);
}

export function swapKept() {
  const now = { options, files };
  ({ options, files } = kept);
  kept = now;
  keep(true);
  tell(false);
}

function keep(isStep) {
  const query = queryOf({ options, files });
  if (kept) query.set(KEPT, String(queryOf(kept)));
  const address = `${location.pathname}?${query}`;
  const dropped = { files: { ...files }, keptFiles: { ...(kept?.files ?? {}) } };
  if (isStep) history.pushState(dropped, "", address);
  else history.replaceState(dropped, "", address);
}

// What the planner is asked with.
export function asked(setup = { options, files }) {
  const contents = Object.fromEntries(Object.entries(setup.files).map(([name, file]) =>
    [name, name === "config" ? { name: file.name, text: file.content } : file.content]));
  return { ...setup.options, ...contents };
}
