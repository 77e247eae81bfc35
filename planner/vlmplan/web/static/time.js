// Seconds of a step by their parts, with the range of what is known.

import { element, keyed, shape, table } from "./dom.js";
import { duration, roundTicks, words } from "./units.js";

const HEIGHT = 84;
const SIDE = 12;

export function showTime(place, answer) {
  const { step_seconds_by_part: parts, step_seconds_range: range } = answer.document;
  if (!parts) {
    place.replaceChildren(element("p", {}, "Not known for this hardware."));
    return;
  }
  const width = Math.max(280, Math.floor(place.clientWidth || 700));
  const shown = Object.entries(parts).filter(([, seconds]) => seconds > 0);
  const total = answer.document.step_seconds;
  const rows = shown.map(([name, seconds]) => [keyed(`time-${name}`, words(name)), duration(seconds), `${((100 * seconds) / total).toFixed(1)}%`]);
  rows.push(["a step", duration(total), "100.0%"]);
  place.replaceChildren(chart(shown, range, total, width), table(["part", "time", "share"], rows, "Time of a step by its parts"));
}

function chart(parts, [fast, slow], total, width) {
  const end = 1.03 * Math.max(slow, total);
  const scale = (seconds) => SIDE + ((width - 2 * SIDE) * seconds) / end;
  let before = 0;
  const segments = parts.map(([name, seconds]) => {
    const [x, to] = [scale(before), scale(before + seconds)];
    before += seconds;
    return shape("rect", { x, y: 8, width: Math.max(to - x, 0.5), height: 22, class: `part time-${name}` },
      shape("title", {}, `${words(name)}: ${duration(seconds)}`));
  });
  const ticks = roundTicks(end, Math.max(4, Math.floor(width / 110))).flatMap((tick) => [
    shape("line", { x1: scale(tick), x2: scale(tick), y1: 4, y2: 62, class: "grid" }),
    shape("text", { x: scale(tick), y: 78, "text-anchor": tick ? "middle" : "start", class: "tick" }, tick ? duration(tick) : "0"),
  ]);
  const label = `A step takes ${duration(total)}, at best ${duration(fast)}, at worst ${duration(slow)}`;
  return shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label, "data-seconds": total },
    ...ticks, ...segments, ...whisker(scale(fast), scale(total), scale(slow), label));
}

// From the best to the worst, with a mark at what is expected.
function whisker(from, at, to, label) {
  return [
    shape("g", { class: "range" },
      shape("title", {}, label),
      shape("line", { x1: from, x2: to, y1: 46, y2: 46 }),
      shape("line", { x1: from, x2: from, y1: 40, y2: 52 }),
      shape("line", { x1: to, x2: to, y1: 40, y2: 52 }),
      shape("circle", { cx: at, cy: 46, r: 4.5 })),
  ];
}
