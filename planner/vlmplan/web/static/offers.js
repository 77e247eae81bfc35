// Cost against time of every setup that fits some offer, on logarithmic axes; the chosen one is marked.

import { element, shape, table } from "./dom.js";
import { duration, hourTick, logTicks, usd } from "./units.js";

const HEIGHT = 340;
const [LEFT, RIGHT, TOP, BOTTOM] = [58, 16, 14, 34];
const HOUR_TICKS = [1 / 60, 2 / 60, 5 / 60, 10 / 60, 20 / 60, 0.5, 1, 2, 4, 8, 24, 48, 120, 240, 480, 1200, 2400, 4800];
const LEAST_DOLLARS = 1e-4; // what is free has no logarithm

export function showOffers(place, answer, gpu, choose) {
  const points = answer.points.map((point) => ({ ...point, usd: Math.max(point.usd, LEAST_DOLLARS) }));
  if (!points.length) {
    place.replaceChildren(element("p", {}, "No price or no speed is known of anything that fits."));
    return;
  }
  const [best] = answer.document.plans;
  const width = Math.max(280, Math.floor(place.clientWidth || 700));
  const front = points.filter((point) => point.is_front).sort((a, b) => a.hours - b.hours);
  const rows = front.map((point) => [
    point.label.replace(/ \((full|lora|lora-8bit|qlora)\)$/, ""), duration(3600 * point.hours), usd(point.usd), point.recipe.method, point.provider ?? "",
    element("button", { type: "button", onclick: () => choose(point) }, "plan this"),
  ]);
  place.replaceChildren(
    element("p", {}, summary(best)),
    chart(points, front, best, gpu, width, choose),
    element("ul", { class: "legend" },
      ...["full", "lora", "lora-8bit", "qlora"].filter((name) => name !== "lora-8bit" || points.some((point) => point.recipe.method === name)).map((name) => element("li", {}, element("span", { class: `key method-${name}` }), name)),
      element("li", {}, element("span", { class: "key ring" }), "this card"),
      element("li", {}, element("span", { class: "key winner" }), "the search's first plan")),
    element("p", { class: "help" }, "Nothing is both faster and cheaper than these:"),
    table(["machine", "time", "usd", "method", "offer", "choose"], rows, "Setups than which none is both faster and cheaper"),
  );
}

function summary(best) {
  if (!best || best.usd === null || best.hours === null) return "Nothing with a price fits.";
  const machine = `${best.num_gpus} x ${best.gpu}`;
  return `Cheapest: ${usd(best.usd)} and ${duration(3600 * best.hours)} on ${machine}, of every recipe that is left open.`;
}

function chart(points, front, best, gpu, width, choose) {
  const across = axis(points.map((point) => point.hours), LEFT, width - RIGHT);
  const up = axis(points.map((point) => point.usd), HEIGHT - BOTTOM, TOP);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img",
    "aria-label": `${points.length} setups by hours and dollars; the table below lists the best of them` });
  const [bottom, right] = [HEIGHT - BOTTOM, width - RIGHT];
  svg.append(
    ...ticked(HOUR_TICKS.filter(across.has), across, (x, tick) => [
      shape("line", { x1: x, x2: x, y1: TOP, y2: bottom, class: "grid" }),
      shape("text", { x, y: bottom + 18, "text-anchor": "middle", class: "tick" }, hourTick(tick)),
    ], 58),
    ...ticked(logTicks(up.low, up.high), up, (y, tick) => [
      shape("line", { x1: LEFT, x2: right, y1: y, y2: y, class: "grid" }),
      shape("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end", class: "tick" }, usd(tick).replace(".00", "")),
    ], 20),
    shape("path", { d: steps(front, across, up), class: "front" }),
    ...points.map((point) => dot(point, across, up, gpu, choose)),
  );
  if (best?.usd) svg.append(shape("circle", { cx: across.at(best.hours), cy: up.at(best.usd), r: 8, class: "winner-ring" },
    shape("title", {}, "the search's first plan")));
  return svg;
}

function axis(values, from, to) {
  const [low, high] = [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
  const at = (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low);
  return { low, high, at, has: (value) => value >= low && value <= high };
}

// Ticks with room for their text.
function ticked(ticks, along, draw, room) {
  let last = null;
  return ticks.flatMap((tick) => {
    const place = along.at(tick);
    if (last !== null && Math.abs(place - last) < room) return [];
    last = place;
    return draw(place, tick);
  });
}

function steps(front, across, up) {
  return front.map((point, place) => {
    const [x, y] = [across.at(point.hours).toFixed(1), up.at(point.usd).toFixed(1)];
    return place ? `H${x} V${y}` : `M${x} ${y}`;
  }).join(" ");
}

function dot(point, across, up, gpu, choose) {
  const isHere = point.gpu === gpu;
  return shape("circle", {
    cx: across.at(point.hours), cy: up.at(point.usd), r: point.is_front || isHere ? 5.5 : 3.5,
    class: `dot method-${point.recipe.method}${isHere ? " here" : ""}`, onclick: () => choose(point),
  }, shape("title", {}, `${point.label}${point.provider ? `, ${point.provider}` : ""}: ${duration(3600 * point.hours)}, ${usd(point.usd)}`));
}
