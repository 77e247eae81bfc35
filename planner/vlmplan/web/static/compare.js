// Two setups beside each other: the one that was kept, and the one that is on the page.

import { element, shape, table } from "./dom.js";
import { stacked } from "./memory.js";
import * as state from "./state.js";
import { duration, gib } from "./units.js";

const ROW = 34;
const LEFT = 52;
const RIGHT = 84;

export function showComparison(place, kept, now) {
  const buttons = element("p", { class: "buttons" },
    element("button", { type: "button", onclick: () => state.swapKept() }, "Swap"),
    element("button", { type: "button", onclick: () => state.forgetKept() }, "Forget the kept one"));
  if (kept.error) {
    place.replaceChildren(element("p", {}, `The kept setup: ${kept.error}`), buttons);
    return;
  }
  const [first, second] = [kept.document, now.document];
  place.replaceChildren(
    chart(kept, now, Math.max(280, Math.floor(place.clientWidth || 700))),
    table(["setup", "kept", "now", "change"], rows(kept, now), "The kept setup and this one"),
    element("p", { class: "help" }, differences(first, second).length ? "Where the setups differ:" : "The setups are equal."),
    element("ul", { class: "lines" }, differences(first, second).map((text) => element("li", {}, text))),
    buttons,
  );
}

// What the device holds, both on one scale, each with its card's limit.
function chart(kept, now, width) {
  const bars = [["kept", kept], ["now", now]].map(([name, answer]) => ({
    name, parts: stacked(answer), taken: answer.document.peak_device_bytes, limit: answer.document.gpu.usable_bytes,
  }));
  const end = 1.03 * Math.max(...bars.map((bar) => Math.max(bar.taken, bar.limit)));
  const scale = (bytes) => LEFT + ((width - LEFT - RIGHT) * bytes) / end;
  const label = bars.map((bar) => `${bar.name}: ${gib(bar.taken)} of ${gib(bar.limit)}`).join("; ");
  const svg = shape("svg", { viewBox: `0 0 ${width} ${2 * ROW}`, width, height: 2 * ROW, role: "img", "aria-label": label });
  bars.forEach((bar, place) => svg.append(...drawnBar(bar, place * ROW, scale, width)));
  return svg;
}

function drawnBar(bar, y, scale, width) {
  let before = 0;
  const segments = bar.parts.map(([style, name, bytes]) => {
    const [from, to] = [scale(before), scale(before + bytes)];
    before += bytes;
    return shape("rect", { x: from, y: y + 6, width: Math.max(to - from, 0.5), height: 20, class: `part ${style}` },
      shape("title", {}, `${bar.name}: ${name} ${gib(bytes)}`));
  });
  const limit = scale(bar.limit);
  return [
    shape("text", { x: LEFT - 8, y: y + 21, "text-anchor": "end" }, bar.name),
    ...segments,
    shape("line", { x1: limit, x2: limit, y1: y + 1, y2: y + 31, class: "limit" }, shape("title", {}, `${gib(bar.limit)} usable`)),
    shape("text", { x: width - 4, y: y + 21, "text-anchor": "end", class: "total" }, gib(bar.taken)),
  ];
}

function rows(kept, now) {
  const [first, second] = [kept.document, now.document];
  const row = (title, of, text) => {
    const [before, after] = [of(first), of(second)];
    if (before === null && after === null) return null;
    const known = (value) => (value === null ? "not known" : text(value));
    return [title, known(before), known(after), before === null || after === null ? "" : change(before, after)];
  };
  const component = (name) => row(name.replaceAll("_", " "), (one) => one.components_at_peak[name], gib);
  return [
    ["verdict", ...[first, second].map((one) => one.verdict.replaceAll("_", " ")), ""],
    row("usable on each GPU", (one) => one.gpu.usable_bytes, gib),
    row("GPU memory", (one) => one.peak_device_bytes, gib),
    ...Object.keys(second.components_at_peak).map(component),
    row("host memory of a node", (one) => one.host_bytes_per_node, gib),
    row("checkpoint", (one) => one.checkpoint_bytes, gib),
    row("step", (one) => one.step_seconds, duration),
    row("samples a second", (one) => one.samples_per_second, (value) => value.toPrecision(3)),
    rowOfRuns(kept, now),
  ].filter((one) => one !== null);
}

function rowOfRuns(kept, now) {
  const [before, after] = [kept.run_seconds, now.run_seconds];
  if (before === null || after === null) return null;
  return ["the run", duration(before), duration(after), change(before, after)];
}

function change(before, after) {
  if (before === after) return "same";
  if (!before) return "";
  const part = (100 * (after - before)) / before;
  return `${part > 0 ? "+" : "\u2212"}${Math.abs(part).toFixed(Math.abs(part) < 10 ? 1 : 0)}%`;
}

// Settings as they are resolved, those that are not alike.
function differences(first, second) {
  const [before, after] = [first, second].map(({ recipe, gpu }) =>
    flat({ ...recipe, gpu: `${gpu.id}:${gpu.count}`, num_nodes: gpu.num_nodes }));
  const text = (value) => (value === null || value === undefined ? "none" : String(value));
  return Object.keys({ ...before, ...after })
    .filter((name) => text(before[name]) !== text(after[name]))
    .map((name) => `${name.replaceAll("_", " ")}: ${text(before[name])} \u2192 ${text(after[name])}`);
}

// Groups of settings as settings of their own.
function flat(settings) {
  return Object.fromEntries(Object.entries(settings).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.entries(flat(value)).map(([inner, one]) => [`${name} ${inner}`, one])
      : [[name, value]]));
}
