// Two plans side by side: the columns of the table that is there, how they differ, and their memory on one scale.

import { byId, element } from "../dom.js";
import { showMemory } from "../memory.js";

export function showPlans(place, plans) {
  const table = byId("plans-table");
  if (!table || plans.length < 2) return;
  const chosen = [0, 1];
  const charts = chosen.map(() => element("div", { class: "plan-chart" }));
  const selects = chosen.map((first, side) => element("select", { id: `plan-${side}`, onchange: (event) => {
    chosen[side] = Number(event.target.value);
    draw();
  } }, plans.map((plan, number) => element("option", { value: String(number), selected: number === first }, plan.name))));
  const only = element("input", { type: "checkbox", id: "only-differences", onchange: draw });
  place.replaceChildren(
    element("div", { class: "buttons plan-choice" },
      element("label", { for: "plan-0" }, "left"), selects[0], element("label", { for: "plan-1" }, "right"), selects[1],
      element("label", { for: "only-differences", class: "check" }, only, "only what differs")),
    element("div", { class: "two" }, charts),
  );
  function draw() {
    const most = Math.max(...chosen.map((number) => fullest(plans[number].estimate)));
    chosen.forEach((number, side) => {
      const title = element("h3", {}, plans[number].name);
      const chart = element("div", {});
      charts[side].replaceChildren(title, chart);
      showMemory(chart, plans[number].estimate, { least: most, of: `${["left", "right"][side]}: ${plans[number].name}` });
    });
    showColumns(table, chosen, only.checked);
  }
  draw();
}

// The bytes to which a plan's bars reach, its limit included.
function fullest({ document }) {
  return Math.max(document.peak_device_bytes, document.gpu.usable_bytes);
}

function showColumns(table, chosen, onlyDifferent) {
  for (const row of table.rows) {
    const cells = [...row.cells].slice(1);
    const [left, right] = chosen.map((number) => cells[number].textContent);
    const isHead = row.parentElement.tagName === "THEAD";
    cells.forEach((cell, number) => (cell.hidden = !chosen.includes(number)));
    row.classList.toggle("differs", !isHead && left !== right);
    row.hidden = onlyDifferent && !isHead && left === right;
  }
}
