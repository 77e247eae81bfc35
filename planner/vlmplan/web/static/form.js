// Controls: the model, the GPU, and every option of `vlmplan estimate`, as the planner describes them.

import { byId, element } from "./dom.js";
import { acceptDrops, filePickers, showFiles } from "./files.js";
import { GIB } from "./units.js";
import * as state from "./state.js";

const FIRST = {
  Samples: ["seq_len", "images_per_sample", "image_size", "num_samples", "epochs"],
  Recipe: [
    "method", "lora_rank", "precision", "optimizer", "zero_stage", "offload_optimizer", "offload_params", "micro_batch",
    "grad_accum", "activation_checkpointing", "train_vision", "train_projector", "train_language", "attention", "loss",
  ],
}; // what is shown at once; the rest is behind "more"

const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, place) => 2 ** (from + place));
const SLIDERS = {
  seq_len: [128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 65536, 131072],
  images_per_sample: [0, 1, 2, 3, 4, 6, 8, 12, 16],
  num_samples: [100, 1000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000],
  epochs: [1, 2, 3, 4, 5, 8, 10],
  micro_batch: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64],
  grad_accum: powers(0, 7),
  global_batch: powers(0, 11),
  lora_rank: powers(0, 9),
  num_nodes: powers(0, 7),
  hpz: powers(0, 3),
  sequence_parallel: powers(0, 3),
  lora_dropout: [0, 0.05, 0.1, 0.2, 0.3, 0.5],
  loraplus_lr_ratio: [1, 2, 4, 8, 16, 32],
  eval_beams: powers(0, 3),
  vllm_memory_utilization: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
  vllm_sleep_level: [0, 1, 2],
  host_ram: powers(4, 11),
  disk: powers(6, 14),
  inter_node_gbit: [1, 10, 25, 50, 100, 200, 400, 800, 1600, 3200],
};
const ANY_COUNT = powers(0, 12);

const controls = {}; // name: { set(value, resolved) }
let form;

export function makeForm(described) {
  form = described;
  const place = byId("setup");
  place.replaceChildren(modelField(), gpuField(), ...form.groups.map(group), elsewhere());
  place.addEventListener("submit", (event) => event.preventDefault());
  acceptDrops();
}

export function kinds() {
  const options = form.groups.flatMap((one) => one.options);
  return Object.fromEntries(options.map((option) => [option.name, option.kind]));
}

// Show the setup, and beside what is open what the planner took; null where it took nothing.
export function showSetup(answered) {
  const taken = answered === null ? {} : { ...answered.recipe, model: answered.model.id };
  for (const [name, control] of Object.entries(controls)) control.set(state.options[name], taken[control.field]);
}

// The options of machines, which no configuration of a trainer decides.
export function machineOptions() {
  return ["gpu", ...form.groups.find((one) => one.title === "Machines").options.map((option) => option.name)];
}

// What the command line takes and this page does not.
function elsewhere() {
  const items = Object.entries(form.elsewhere).map(([name, reason]) => element("li", {}, `--${name.replaceAll("_", "-")}: ${reason}`));
  return element("details", { class: "group" }, element("summary", {}, "Only on the command line"), element("ul", { class: "lines" }, items));
}

function group(described) {
  const first = FIRST[described.title] ?? [];
  const shown = first.map((name) => described.options.find((option) => option.name === name)).filter(Boolean);
  const rest = described.options.filter((option) => !first.includes(option.name));
  const more = rest.map(field);
  if (!shown.length) return element("details", { class: "group" }, element("summary", {}, described.title), more);
  const behind = rest.length
    ? [element("details", {}, element("summary", {}, `More of ${described.title.toLowerCase()}`), more)]
    : [];
  return element("fieldset", {}, element("legend", {}, described.title), shown.map(field), behind);
}

function field(option) {
  const id = `option-${option.name}`;
  const make = { switch: switchControl, choice: choiceControl, whole: numberControl, number: numberControl, text: textControl };
  const control = make[option.kind](option, id);
  controls[option.name] = { set: control.set, field: option.field };
  return element(
    "div",
    { class: `field ${option.kind}`, title: option.help },
    element("label", { for: id }, label(option)),
    control.nodes,
    element("span", { id: `${id}-help`, class: "hidden-title" }, option.help),
  );
}

function label(option) {
  return option.flag.replace("--", "").replaceAll("-", " ");
}

function selection(option, id, choices) {
  const open = element("option", { value: "" }, "auto");
  const select = element(
    "select",
    { id, "aria-describedby": `${id}-help` },
    open,
    choices.map(([value, text]) => element("option", { value }, text)),
  );
  return { open, select };
}

function choiceControl(option, id) {
  const { open, select } = selection(option, id, option.choices.map((choice) => [choice, choice]));
  select.addEventListener("change", () => state.change({ [option.name]: select.value || null }));
  const set = (value, resolved) => {
    select.value = option.choices.includes(String(value)) ? String(value) : "";
    open.textContent = resolved === undefined || resolved === null ? "auto" : `auto: ${resolved}`;
  };
  return { nodes: [select], set };
}

function switchControl(option, id) {
  const { open, select } = selection(option, id, [["true", "yes"], ["false", "no"]]);
  select.addEventListener("change", () =>
    state.change({ [option.name]: select.value === "" ? null : select.value === "true" }),
  );
  const set = (value, resolved) => {
    select.value = typeof value === "boolean" ? String(value) : "";
    open.textContent = typeof resolved === "boolean" ? `auto: ${resolved ? "yes" : "no"}` : "auto";
  };
  return { nodes: [select], set };
}

function numberControl(option, id) {
  const input = element("input", { id, type: "number", min: "0", step: option.kind === "whole" ? "1" : "any",
    inputmode: "decimal", "aria-describedby": `${id}-help` });
  const give = (isStep) => state.change({ [option.name]: input.value === "" ? null : Number(input.value) }, isStep);
  input.addEventListener("change", () => give(true));
  const values = SLIDERS[option.name] ?? (option.kind === "whole" ? ANY_COUNT : null);
  const slider = values ? sliderOf(option, values, input) : null;
  const set = (value, resolved) => {
    if (document.activeElement !== input) input.value = typeof value === "number" ? value : "";
    input.placeholder = resolved === undefined || resolved === null ? "auto" : String(resolved);
    const shown = typeof value === "number" ? value : resolved;
    if (slider && document.activeElement !== slider) slider.value = nearest(values, typeof shown === "number" ? shown : values[0]);
    if (slider) slider.setAttribute("aria-valuetext", String(shown ?? "auto"));
  };
  return { nodes: slider ? [slider, input] : [input], set };
}

function sliderOf(option, values, input) {
  const slider = element("input", { type: "range", min: "0", max: String(values.length - 1), step: "1",
    "aria-label": `${label(option)}, as a slider` });
  const give = (isStep) => {
    input.value = values[Number(slider.value)];
    state.change({ [option.name]: values[Number(slider.value)] }, isStep);
  };
  let isMoving = false;
  slider.addEventListener("input", () => {
    give(!isMoving); // the first move is a step in the history, those that follow replace it
    isMoving = true;
  });
  slider.addEventListener("change", () => (isMoving = false));
  return slider;
}

function nearest(values, wanted) {
  const distances = values.map((value) => Math.abs(Math.log((value + 0.5) / (wanted + 0.5))));
  return distances.indexOf(Math.min(...distances));
}

function textControl(option, id) {
  const input = element("input", { id, type: "text", maxlength: "4000", spellcheck: "false", "aria-describedby": `${id}-help` });
  input.addEventListener("change", () => state.change({ [option.name]: input.value || null }));
  const set = (value, resolved) => {
    if (document.activeElement !== input) input.value = value === undefined ? "" : String(value);
    input.placeholder = resolved === undefined || resolved === null ? "auto" : String(resolved);
  };
  return { nodes: [input], set };
}

// -- model and GPU ---------------------------------------------------------------------------------------------------

function modelField() {
  const list = element("datalist", { id: "models" }, form.models.map((one) =>
    element("option", { value: one.alias }, one.hub_id ?? "")));
  const input = element("input", { id: "model", type: "text", list: "models", maxlength: "200", spellcheck: "false",
    "aria-describedby": "model-help" });
  input.addEventListener("change", () => state.change({ model: input.value.trim() || null }));
  const chosen = element("div", { id: "chosen-files" });
  controls.model = {
    field: "model",
    set(value, resolved) {
      if (document.activeElement !== input) input.value = value ?? "";
      input.placeholder = state.files.config ? String(resolved ?? "") : "";
      showFiles(chosen);
    },
  };
  return element(
    "fieldset",
    {},
    element("legend", {}, "Model and files"),
    element("div", { class: "field" }, element("label", { for: "model" }, "model"), input, list),
    element("p", { id: "model-help", class: "help" }, "Alias, id of a cached model, or a file that you choose or drop here:"),
    filePickers(),
    chosen,
    element("p", { id: "data-note", class: "help", role: "status" }),
  );
}

function gpuField() {
  const gpu = element("select", { id: "gpu" }, form.gpus.filter((one) => one.memory_bytes).map((one) =>
    element("option", { value: one.id }, `${one.name}, ${Math.round(one.memory_bytes / GIB)} GiB`)));
  const count = element("input", { id: "gpu-count", type: "number", min: "1", max: "64", step: "1" });
  const slider = element("input", { type: "range", min: "0", max: "3", step: "1", "aria-label": "GPUs of a machine, as a slider" });
  const give = (isStep) => state.change({ gpu: `${gpu.value}:${count.value || 1}` }, isStep);
  gpu.addEventListener("change", () => give(true));
  count.addEventListener("change", () => give(true));
  slider.addEventListener("input", () => {
    count.value = 2 ** Number(slider.value);
    give(true);
  });
  controls.gpu = {
    field: "gpu",
    set(value) {
      const [id, number] = String(value ?? "").split(":");
      const isListed = [...gpu.options].some((one) => one.value === id);
      if (!isListed) gpu.append(element("option", { value: id }, id)); // an alias, local or cpu, by the address
      gpu.value = id;
      if (document.activeElement !== count) count.value = number || 1;
      slider.value = Math.round(Math.log2(Number(number) || 1));
    },
  };
  return element(
    "fieldset",
    {},
    element("legend", {}, "GPU"),
    element("div", { class: "field" }, element("label", { for: "gpu" }, "card"), gpu),
    element("div", { class: "field whole" }, element("label", { for: "gpu-count" }, "in a machine"), slider, count),
  );
}
