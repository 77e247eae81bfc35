// Cost against time of the setups that are looked for: by method, provider and card, within hours and dollars.

import { element } from "../dom.js";
import { showOffers } from "../offers.js";

export function showFilteredOffers(place, answer) {
  const chart = element("div", {});
  const said = element("p", { class: "help", role: "status" });
  const choice = (label, of) => {
    const values = [...new Set(answer.points.map(of))].filter(Boolean).sort();
    const select = element("select", { onchange: draw }, element("option", { value: "" }, `any ${label}`),
      values.map((value) => element("option", { value }, value)));
    return { node: element("label", {}, element("span", {}, label), select), keeps: (point) => !select.value || of(point) === select.value };
  };
  const limit = (label, of) => {
    const input = element("input", { type: "number", min: "0", step: "any", oninput: draw });
    return { node: element("label", {}, element("span", {}, label), input), keeps: (point) => input.value === "" || of(point) <= Number(input.value) };
  };
  const filters = [
    choice("method", (point) => point.recipe.method), choice("card", (point) => point.gpu.split(":")[0]), choice("provider", (point) => point.provider),
    limit("most hours", (point) => point.hours), limit("most usd", (point) => point.usd),
  ];
  place.replaceChildren(element("div", { class: "filters" }, filters.map((one) => one.node)), said, chart);
  function draw() {
    const points = answer.points.filter((point) => filters.every((one) => one.keeps(point)));
    said.textContent = `${points.length.toLocaleString("en-US")} of ${answer.points.length.toLocaleString("en-US")} setups`;
    showOffers(chart, { ...answer, points }, null, null);
  }
  draw();
  return draw;
}
