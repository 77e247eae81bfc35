// Memory by phase: bars of components on one scale with the card's limit, its reserve, and round ticks.

import { element, keyed, shape, table } from "./dom.js";
import { GIB, gib, roundTicks, words } from "./units.js";

const ROW = 30;
const BAR = 18;
const LEFT = 72;
const RIGHT = 84;
const TOP = 26;
const BOTTOM = 26;
const LETTER = 6.6; // pixels that one takes at most, on average

let chosen = null; // the phase whose parts are listed
let listed = () => {}; // told which phase that is

export function onPhase(listener) {
  listed = listener;
}

// `least`: bytes that the scale has at least, so that two charts can be compared. `of`: what tells this one from the other.
export function showMemory(place, answer, { least = 0, of = "" } = {}) {
  const rows = rowsOf(answer);
  if (!rows.some((row) => row.name === chosen)) chosen = null;
  const width = Math.max(300, Math.floor(place.clientWidth || 700));
  const parts = element("div", { class: "parts" });
  const show = (row) => {
    parts.replaceChildren(partsTable(row, of));
    listed(row);
  };
  place.replaceChildren(chart(answer, rows, width, show, least), legend(rows), parts);
  show(rows.find((row) => row.name === (chosen ?? answer.document.peak_phase)));
}

// Each phase at its peak, and the device: the highest of them with what is there beside tensors.
function rowsOf(answer) {
  const phases = answer.phases.map((phase) => ({
    name: phase.name, parts: Object.entries(phase.components), after: phase.resident_bytes,
  }));
  const peak = phases.find((row) => row.name === answer.document.peak_phase);
  const beyond = Object.entries(answer.beyond);
  phases.push({ name: "device", parts: [...peak.parts, ...beyond], after: null });
  return phases.map((row) => ({ ...row, total: row.parts.reduce((sum, [, bytes]) => sum + bytes, 0) }));
}

// The device as a bar: [style, name, bytes] of its parts.
export function stacked(answer) {
  return rowsOf(answer).at(-1).parts.filter(([, bytes]) => bytes > 0).map(([name, bytes]) => [kind(name), words(name), bytes]);
}

function chart(answer, rows, width, show, least) {
  const { usable_bytes: limit } = answer.document.gpu;
  const end = 1.03 * Math.max(limit, least, ...rows.map((row) => row.total));
  const scale = (bytes) => LEFT + ((width - LEFT - RIGHT) * bytes) / end;
  const height = TOP + ROW * rows.length + BOTTOM;
  const bottom = height - BOTTOM;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
    "aria-label": `Bars of memory: ${answer.verdict}` });
  svg.append(...grid(end, width, scale, bottom));
  svg.append(...rows.map((row, place) => bar(row, TOP + ROW * place, scale, width, show, svg)));
  svg.append(...limits(answer.document, scale, bottom, width));
  return svg;
}

function grid(end, width, scale, bottom) {
  const ticks = roundTicks(end / GIB, Math.max(3, Math.floor((width - LEFT - RIGHT) / 70)));
  return ticks.flatMap((tick) => {
    const x = scale(tick * GIB);
    return [
      shape("line", { x1: x, x2: x, y1: TOP - 4, y2: bottom, class: "grid" }),
      shape("text", { x, y: bottom + 16, class: "tick", "text-anchor": "middle" }, `${Number(tick.toPrecision(6))}`),
    ];
  }).concat(shape("text", { x: width - 2, y: bottom + 16, class: "tick", "text-anchor": "end" }, "GiB"));
}

function bar(row, y, scale, width, show, svg) {
  const choose = () => {
    chosen = row.name;
    for (const other of svg.querySelectorAll(".field-of-row")) other.setAttribute("aria-pressed", String(other === button));
    show(row);
  };
  let before = 0;
  const segments = row.parts.filter(([, bytes]) => bytes > 0).map(([name, bytes]) => {
    const [x, end] = [scale(before), scale(before + bytes)];
    before += bytes;
    return shape("rect", { x, y: y + 4, width: Math.max(end - x, 0.5), height: BAR, class: `part ${kind(name)}` },
      shape("title", {}, `${row.name}: ${words(name)} ${gib(bytes)}`));
  });
  const button = shape("rect", {
    x: 0, y: y + 0.5, width, height: ROW - 4, class: "field-of-row", tabindex: "0", role: "button",
    "aria-pressed": String(row.name === chosen), "aria-label": `${row.name} ${gib(row.total)}`,
    "data-phase": row.name, "data-bytes": row.total,
    onkeydown: (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose();
      }
    },
  });
  return shape("g", { class: "row", onclick: choose },
    button,
    shape("g", { "aria-hidden": "true" },
      shape("text", { x: LEFT - 8, y: y + 17, "text-anchor": "end", class: "name" }, row.name),
      ...segments,
      shape("text", { x: width - 4, y: y + 17, "text-anchor": "end", class: "total" }, gib(row.total))));
}

function limits(document, scale, bottom, width) {
  const limit = document.gpu.usable_bytes;
  const [from, to] = [scale(limit - document.reserve_bytes), scale(limit)];
  const long = `${gib(limit)} usable, ${gib(document.reserve_bytes)} of it reserve`;
  const fits = (text) => LETTER * text.length < Math.max(to, width - to);
  const anchor = to > width / 2 ? "end" : "start";
  return [
    shape("rect", { x: from, y: TOP - 4, width: to - from, height: bottom - TOP + 4, class: "reserve" },
      shape("title", {}, `reserve: 'fits' keeps ${gib(document.reserve_bytes)} free`)),
    shape("line", { x1: to, x2: to, y1: TOP - 10, y2: bottom, class: "limit" }),
    shape("text", { x: to + (anchor === "end" ? 2 : -2), y: TOP - 13, "text-anchor": anchor, class: "limit-text" },
      fits(long) ? long : `${gib(limit)} usable`),
  ];
}

// The style of a component: what is beside tensors has one for all.
const COMPONENTS = ["weights", "gradients", "optimizer_states", "activations", "logits", "communication_buffers", "temporaries"];

function kind(name) {
  return COMPONENTS.includes(name) ? name : "beyond";
}

function legend(rows) {
  const present = new Set(rows.flatMap((row) => row.parts.filter(([, bytes]) => bytes > 0).map(([name]) => kind(name))));
  const names = [...COMPONENTS.filter((name) => present.has(name)), ...(present.has("beyond") ? ["beyond"] : [])];
  const items = names.map((name) =>
    element("li", {}, element("span", { class: `key ${name}` }), name === "beyond" ? "beside tensors" : words(name)));
  return element("ul", { class: "legend" }, items, element("li", {}, element("span", { class: "key reserve-key" }), "reserve"));
}

function partsTable(row, of) {
  const parts = row.parts.filter(([, bytes]) => bytes > 0);
  const rows = parts.map(([name, bytes]) => [keyed(kind(name), words(name)), gib(bytes), `${((100 * bytes) / row.total).toFixed(1)}%`]);
  rows.push(["in all", gib(row.total), row.total ? "100.0%" : ""]);
  if (row.after !== null) rows.push(["stays after it", gib(row.after), ""]);
  const title = row.name === "device" ? "device, as nvidia-smi shows it" : `at the peak of ${row.name}`;
  return table([title, "bytes", "share"], rows, `What is inside: ${row.name}${of && `, ${of}`}`);
}
