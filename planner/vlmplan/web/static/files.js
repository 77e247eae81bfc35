// Files that are chosen or dropped: what they are is told by what is in them. They stay in this page and its history, and
// are sent to the planner alone.

import { answerTo } from "./ask.js";
import { byId, element } from "./dom.js";
import * as state from "./state.js";

const CALLED = { model: "model", ds_config: "DeepSpeed", config: "trainer" };
const PICKERS = [
  ["model", "config.json", ".json,application/json"],
  ["ds_config", "ds_config.json", ".json,application/json"],
  ["config", "trainer's file or plan.json", ".yaml,.yml,.json,.sh,.bash,.slurm,.sbatch,.py,.ipynb"],
  ["data", "samples", ".jsonl,.json"],
];
const MAX_DATA_BYTES = 3 * 2 ** 20;
const DEEPSPEED_KEYS = ["zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"];

export function filePickers() {
  return element("p", { class: "files" }, PICKERS.map(([option, text, accept]) => picker(option, text, accept)));
}

function picker(option, text, accept) {
  const input = element("input", { type: "file", accept, class: "hidden-title", id: `file-${option}` });
  input.addEventListener("change", () => {
    if (input.files[0]) take(input.files[0], option === "config" ? null : option);
    input.value = "";
  });
  return element("span", {}, input, element("label", { for: input.id, class: "button" }, text));
}

// What is chosen, each with a button that takes it away.
export function showFiles(place) {
  const rows = Object.entries(state.files).map(([option, file]) => {
    const away = element("button", { type: "button", "aria-label": `remove ${file.name}`, onclick: () => state.removeFile(option) }, "remove");
    return element("p", { class: "file" }, `${CALLED[option]}: ${file.name} `, away);
  });
  place.replaceChildren(...rows);
}

export function acceptDrops() {
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0], null);
  });
}

function say(sentence) {
  byId("problem").textContent = sentence;
  byId("problem").hidden = false;
}

// `option`: what the file is, where its button says so.
async function take(file, option) {
  byId("data-note").textContent = "";
  if (option === "data" || file.name.endsWith(".jsonl")) return takeSamples(file);
  if (file.size > state.MAX_FILE_BYTES) return say(`${file.name} has more than 1 MiB, so it is no configuration`);
  const text = await file.text();
  if (text.trimStart().startsWith("[")) return takeSamples(file);
  const content = objectOf(text);
  const kind = option ?? kindOf(content);
  if (kind === "config") return state.dropFile("config", file.name, text);
  if (content === null) return say(`${file.name} holds no JSON object {...}`);
  if (kind === "plan") return takePlan(content);
  return state.dropFile(kind, file.name, content);
}

function objectOf(text) {
  try {
    const content = JSON.parse(text);
    return typeof content === "object" && !Array.isArray(content) ? content : null;
  } catch {
    return null;
  }
}

function kindOf(content) {
  if (content === null) return "config";
  if (String(content.schema).startsWith("vlmplan.plan/")) return "plan";
  if ("model_type" in content) return "model";
  return DEEPSPEED_KEYS.some((key) => key in content) ? "ds_config" : "config";
}

// Samples are summed up: how many, how long, with how many images. The controls show it, and the file is not needed again.
async function takeSamples(file) {
  if (file.size > MAX_DATA_BYTES) return say(`${file.name} has more than 3 MiB; vlmplan estimate --data takes any length`);
  const { model = byId("model").placeholder, image_size } = state.asked();
  const answer = await answerTo({ ask: "data", options: { model, image_size, data: { name: file.name, text: await file.text() } } });
  if (answer.error) return say(answer.error);
  byId("data-note").textContent = answer.sentences.join("; ");
  return state.change(answer.options);
}

// A plan is taken apart into the options that ask for it.
async function takePlan(plan) {
  const answer = await answerTo({ ask: "plan", options: { plan } });
  if (answer.error) return say(answer.error);
  const files = answer.model ? { model: { name: "the plan's model", content: answer.model } } : {};
  return state.replace(answer.options, files);
}
