// What is inside of a bar, down to modules: weights and what is made of them by their share, activations as they are kept.

import { element, table } from "./dom.js";
import { count, gib } from "./units.js";

const MOST_ROWS = 25;
const HOLDS_ACTIVATIONS = ["forward", "backward", "device"];
const KEPT = ["activations", "logits"];

// `row`: the bar that is listed, with its parts. Shares of one component are of all that the GPU holds of it.
export function showModules(place, modules, row) {
  const held = Object.fromEntries(row.parts);
  const inside = modules.map((one) => ({ ...one, parts: partsOf(one, held, totals(modules), row) })).map((one) =>
    ({ ...one, sum: Object.values(one.parts).reduce((sum, bytes) => sum + bytes, 0) }));
  inside.sort((a, b) => b.sum - a.sum);
  const shown = inside.filter((one) => one.sum > 0).slice(0, MOST_ROWS);
  const rest = inside.slice(shown.length).reduce((sum, one) => sum + one.sum, 0);
  const named = shown.reduce((sum, one) => sum + one.sum, 0) + rest;
  const share = (bytes) => (row.total ? `${((100 * bytes) / row.total).toFixed(1)}%` : "");
  const rows = shown.map((one) => [
    one.module, gib(one.sum), share(one.sum), gib(one.parts.weights), gib(one.parts.gradients + one.parts.optimizer_states),
    gib(one.parts.kept), count(one.num_params), count(one.num_trained),
  ]);
  if (rest > 0) rows.push([`${inside.length - shown.length} more modules`, gib(rest), share(rest), "", "", "", "", ""]);
  rows.push(["of no module: buffers, temporaries, what comes and goes", gib(row.total - named), share(row.total - named), "", "", "", "", ""]);
  rows.push(["in all", gib(row.total), row.total ? "100.0%" : "", "", "", "", "", ""]);
  place.replaceChildren(
    table([`modules in ${row.name}`, "bytes", "share", "weights", "gradients, optimizer", "kept for backward", "parameters", "trained"],
      rows, `Modules in ${row.name}`),
    element("p", { class: "help" }, "Equal layers are together (*). The GPU's weights, gradients and optimizer states are shared out by what " +
      "each module has of the whole model's, before it is sharded; what it keeps for backward is its own."),
  );
}

function totals(modules) {
  const sum = (of) => modules.reduce((total, one) => total + of(one), 0);
  return { bytes: sum((one) => one.bytes), trained: sum((one) => one.num_trained) };
}

function partsOf(one, held, whole, row) {
  const part = (component, share) => (held[component] ?? 0) * (share || 0);
  const kept = HOLDS_ACTIVATIONS.includes(row.name) ? KEPT.reduce((sum, kind) => sum + (one.kept[kind] ?? 0), 0) : 0;
  const trained = one.num_trained / whole.trained;
  return { weights: part("weights", one.bytes / whole.bytes), gradients: part("gradients", trained),
    optimizer_states: part("optimizer_states", trained), kept };
}
