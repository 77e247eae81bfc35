// A report: what stands still in the file is drawn anew with the page's charts, of what is in the file.

import { byId } from "../dom.js";
import { showMemory } from "../memory.js";
import { showTime } from "../time.js";
import { showFilteredOffers } from "./filter.js";
import { showPlans } from "./plans.js";

export const data = JSON.parse(byId("data").textContent);

const drawings = [];

function drawn(id, draw) {
  const place = byId(id);
  if (place) drawings.push(() => draw(place));
}

if (data.estimate) drawn("memory", (place) => showMemory(place, data.estimate));
if (data.estimate?.document.step_seconds_by_part) drawn("time", (place) => showTime(place, data.estimate));
if (data.offers) drawn("offers", (place) => showFilteredOffers(place, data.offers));
if (data.plans) drawn("plans", (place) => showPlans(place, data.plans));
for (const draw of drawings) draw();

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  for (const draw of drawings) draw();
});
document.body.dataset.drawn = "charts";
