// Memory over time: components stacked, the allocator's reserve above them, the card's limit; zoom, pan, and what is there
// at each moment, with mouse, finger or keyboard.

import { element } from "../dom.js";
import { GIB, gib, words } from "../units.js";
import { eventsOf, momentsWithin } from "./events.js";
import { Readout } from "./readout.js";

const HEIGHT = 380;
const LEAST_EVENTS = 12; // of a zoom
const STEP = 1.25; // of a zoom by key, button or wheel
const FAR = 2; // a limit that many times higher than the peak would leave the chart empty, so it waits for its button
const BEYOND = "beyond";

export async function showTimeline(place, packed) {
  const found = await eventsOf(packed);
  if (found.count) new Timeline(place, found).draw();
}

class Timeline {
  constructor(place, found) {
    this.found = found;
    this.names = [BEYOND, ...found.packed.components];
    this.from = 0;
    this.to = found.count;
    this.event = found.peak;
    this.beyond = found.packed.beyond_bytes;
    this.limit = found.packed.usable_bytes;
    this.highest = found.totals[found.peak] + this.beyond;
    this.showsLimit = this.limit <= FAR * this.highest;
    this.chartPlace = element("div", {
      class: "timeline-chart", tabindex: "0", role: "slider", "aria-label": "Moment of the rehearsal, by events",
      "aria-valuemin": "1", "aria-valuemax": String(found.count), "aria-describedby": "timeline-help",
    });
    this.readout = new Readout(found);
    place.replaceChildren(this.controls(), this.chartPlace, this.legend(), this.readout.node);
    this.listen();
  }

  // -- what is shown ---------------------------------------------------------------------------------------------------

  draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.chart?.destroy();
    this.chart = new uPlot(this.options(colour), this.data(), this.chartPlace);
    this.point();
  }

  options(colour) {
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    const stepped = uPlot.paths.stepped({ align: 1 });
    const areas = [...this.names].reverse().map((name) => ({
      fill: colour(name), stroke: colour(name), width: 0, paths: stepped, points: { show: false },
    }));
    const reserved = { stroke: colour("text"), width: 1, dash: [4, 3], paths: stepped, points: { show: false } };
    return {
      width: Math.max(280, this.chartPlace.clientWidth), height: HEIGHT,
      legend: { show: false }, cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [this.from, this.to] }, y: { range: () => [0, this.end() / GIB] } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en-US") : "")), space: 90 },
        { ...axis, values: (_, ticks) => ticks.map((tick) => `${Number(tick.toPrecision(6))} GiB`), size: 72 },
      ],
      series: [{}, ...areas, ...(this.found.reserved ? [reserved] : [])],
      hooks: { drawClear: [(chart) => this.drawPhases(chart, colour)], draw: [(chart) => this.drawMarks(chart, colour)], setCursor: [(chart) => this.hover(chart)] },
    };
  }

  end() {
    const seen = this.found.reserved ? this.found.reserved[this.found.count - 1] + this.beyond : 0;
    return 1.05 * Math.max(this.highest, seen, this.showsLimit ? this.limit : 0);
  }

  // Events from left to right, and for each area the sum of those below it and its own, the highest first.
  data() {
    const moments = momentsWithin(this.found, this.from, this.to, 2 * this.chartPlace.clientWidth);
    const columns = [Array.from(moments, (event) => event + 1)];
    let below = Array.from(moments, () => this.beyond / GIB);
    const areas = [below];
    for (const part of this.found.parts) {
      below = below.map((bytes, place) => bytes + part[moments[place]] / GIB);
      areas.push(below);
    }
    columns.push(...areas.reverse());
    if (this.found.reserved) columns.push(Array.from(moments, (event) => (this.found.reserved[event] + this.beyond) / GIB));
    return columns;
  }

  redraw() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.chart.setData(this.data());
      this.point();
    });
  }

  drawPhases(chart, colour) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    this.found.packed.marks.forEach(([begin, end, name, step], place) => {
      const [left, right] = [begin, end].map((event) => chart.valToPos(event, "x", true));
      ctx.fillStyle = colour(place % 2 ? "hover" : "back");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      const text = step ? `${name} ${step}` : name;
      const from = Math.max(left, bbox.left) + 3 * devicePixelRatio;
      ctx.fillStyle = colour("quiet");
      if (ctx.measureText(text).width < Math.min(right, bbox.left + bbox.width) - from) ctx.fillText(text, from, bbox.top - 5 * devicePixelRatio);
    });
    ctx.restore();
  }

  drawMarks(chart, colour) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.fillStyle = ctx.strokeStyle = colour("text");
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.textAlign = "right";
    const y = chart.valToPos(this.limit / GIB, "y", true);
    if (this.showsLimit) {
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.fillText(`${gib(this.limit)} usable`, bbox.left + bbox.width - 4, y + 15 * devicePixelRatio);
    }
    const x = chart.valToPos(this.found.peak + 1, "x", true);
    if (x >= bbox.left && x <= bbox.left + bbox.width) {
      ctx.beginPath();
      ctx.fillStyle = colour("bad");
      ctx.arc(x, chart.valToPos(this.highest / GIB, "y", true), 4 * devicePixelRatio, 0, 7);
      ctx.fill();
    }
    ctx.restore();
  }

  legend() {
    const shown = this.names.filter((name, place) => (place ? this.found.parts[place - 1].some(Boolean) : this.beyond > 0));
    const items = shown.map((name) => element("li", {}, element("span", { class: `key ${name}` }), name === BEYOND ? "beside tensors" : words(name)));
    const dashed = this.found.reserved ? [element("li", {}, element("span", { class: "key dashed" }), "reserved by the allocator")] : [];
    return element("ul", { class: "legend" }, items, dashed);
  }

  controls() {
    const button = (text, label, act) => element("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const limit = element("button", { type: "button", "aria-pressed": String(this.showsLimit), onclick: () => {
      this.showsLimit = !this.showsLimit;
      limit.setAttribute("aria-pressed", String(this.showsLimit));
      this.redraw();
    } }, "up to the limit");
    const phases = element("select", { "aria-label": "Zoom to a phase", onchange: (event) => this.zoomTo(Number(event.target.value)) },
      element("option", { value: "-1" }, "whole run"),
      this.found.packed.marks.map(([, , name, step], place) => element("option", { value: String(place) }, step ? `${name} of step ${step}` : name)));
    return element("div", { class: "buttons timeline-controls" },
      button("+", "Zoom in", () => this.zoom(1 / STEP ** 2)), button("−", "Zoom out", () => this.zoom(STEP ** 2)),
      button("◀", "Pan to the left", () => this.pan(-0.25)), button("▶", "Pan to the right", () => this.pan(0.25)),
      button("to the peak", "Zoom to the peak", () => this.zoomToPeak()), phases, limit,
      element("p", { id: "timeline-help", class: "help" },
        "Drag to pan; wheel with Ctrl, or two fingers, to zoom; arrows move the moment, Shift with arrows pans, + and − zoom, 0 shows all."));
  }

  // -- what moves ------------------------------------------------------------------------------------------------------

  set(from, to) {
    const size = Math.min(this.found.count, Math.max(LEAST_EVENTS, to - from));
    this.from = Math.min(Math.max(0, from), this.found.count - size);
    this.to = this.from + size;
    this.redraw();
  }

  // Makes what is seen `factor` times as long; `at` stays where it is.
  zoom(factor, at = this.event >= this.from && this.event <= this.to ? this.event : (this.from + this.to) / 2) {
    this.set(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(part) {
    const by = part * (this.to - this.from);
    this.set(this.from + by, this.to + by);
  }

  zoomTo(place) {
    const [begin, end] = place < 0 ? [0, this.found.count] : this.found.packed.marks[place];
    this.set(begin, end);
  }

  zoomToPeak() {
    const half = Math.max(LEAST_EVENTS, this.found.count / 200);
    this.event = this.found.peak;
    this.set(this.event - half, this.event + half);
  }

  // The moment that is looked at; where that is outside, it is brought into sight.
  moveTo(event, component = null) {
    this.event = Math.min(this.found.count - 1, Math.max(0, event));
    if (this.event < this.from || this.event > this.to) {
      const half = (this.to - this.from) / 2;
      this.set(this.event - half, this.event + half);
    }
    this.point(component);
  }

  point(component = null) {
    const text = this.readout.show(this.event, component);
    this.chartPlace.setAttribute("aria-valuenow", String(this.event + 1));
    this.chartPlace.setAttribute("aria-valuetext", text);
    if (!this.isHovering) {
      this.isPointing = true;
      this.chart.setCursor({ left: this.chart.valToPos(this.event + 1, "x"), top: 0 }, false);
      this.isPointing = false;
    }
  }

  hover(chart) {
    const { left, top, event: cause } = chart.cursor;
    if (this.isPointing || !cause || left < 0) return;
    this.isHovering = true;
    const event = this.nearest(chart.posToVal(left, "x"));
    const bytes = chart.posToVal(top, "y") * GIB - this.beyond;
    let below = 0;
    const component = this.found.parts.findIndex((part) => bytes >= below && bytes < (below += part[event]));
    this.moveTo(event, component < 0 ? null : component);
    this.isHovering = false;
  }

  // The event under a place: the highest one of those that share a pixel, which is the one that is drawn there.
  nearest(value) {
    const pixel = (this.to - this.from) / this.chartPlace.clientWidth;
    if (pixel <= 1) return Math.min(this.found.count - 1, Math.max(0, Math.floor(value) - 1));
    const moments = momentsWithin(this.found, Math.max(0, value - pixel), Math.min(this.found.count, value), 2);
    return moments.reduce((best, event) => (Math.abs(event + 1 - value) < Math.abs(best + 1 - value) ? event : best));
  }

  listen() {
    const place = this.chartPlace;
    place.addEventListener("keydown", (event) => this.key(event));
    place.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const over = place.querySelector(".u-over").getBoundingClientRect();
      const at = this.from + ((event.clientX - over.left) / over.width) * (this.to - this.from);
      this.zoom(event.deltaY > 0 ? STEP : 1 / STEP, at);
    }, { passive: false });
    place.addEventListener("dblclick", () => this.zoomTo(-1));
    this.listenToPointers(place);
    new ResizeObserver(() => {
      if (this.chart && this.chart.width !== Math.max(280, place.clientWidth)) this.draw();
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // One pointer pans, two zoom.
  listenToPointers(place) {
    const pointers = new Map();
    const width = () => place.querySelector(".u-over").clientWidth;
    place.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event.clientX);
      place.setPointerCapture(event.pointerId);
    });
    place.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) return;
      const before = [...pointers.values()];
      pointers.set(event.pointerId, event.clientX);
      const now = [...pointers.values()];
      if (now.length === 1) this.pan((before[0] - now[0]) / width());
      else this.zoom(Math.max(20, Math.abs(before[0] - before[1])) / Math.max(20, Math.abs(now[0] - now[1])), (this.from + this.to) / 2);
    });
    for (const kind of ["pointerup", "pointercancel"]) place.addEventListener(kind, (event) => pointers.delete(event.pointerId));
  }

  key(event) {
    const step = Math.max(1, Math.round((this.to - this.from) / 200));
    const acts = {
      ArrowLeft: () => (event.shiftKey ? this.pan(-0.1) : this.moveTo(this.event - step)),
      ArrowRight: () => (event.shiftKey ? this.pan(0.1) : this.moveTo(this.event + step)),
      Home: () => this.moveTo(0), End: () => this.moveTo(this.found.count - 1),
      "+": () => this.zoom(1 / STEP), "=": () => this.zoom(1 / STEP), "-": () => this.zoom(STEP), 0: () => this.zoomTo(-1),
    };
    if (event.ctrlKey || event.metaKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
}
