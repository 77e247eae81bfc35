// What is there at one moment of a rehearsal: the event, the bytes, and the largest tensors with who allocated them.

import { element, keyed, table } from "../dom.js";
import { gib, words } from "../units.js";
import { described, largestAt } from "./events.js";

const MOST = 8; // tensors in the list
const SMALL = "less than 1 MiB, so nobody looked who asked for it";

export class Readout {
  constructor(found) {
    this.found = found;
    this.sentence = element("p", {});
    this.list = element("div", {});
    this.node = element("div", { class: "readout" }, this.sentence, this.list);
  }

  // Show an event, with the tensors of one component or of all; the sentence on it.
  show(event, component) {
    const { found } = this;
    const total = gib(found.totals[event] + found.packed.beyond_bytes);
    const text = `event ${(event + 1).toLocaleString("en-US")} of ${found.count.toLocaleString("en-US")}, ${this.phaseOf(event)}: ${total} with what is beside tensors. ${this.what(event)}`;
    this.sentence.textContent = text;
    this.later(event, component);
    return text;
  }

  phaseOf(event) {
    const mark = this.found.packed.marks.find(([begin, end]) => event >= begin && event < end);
    if (!mark) return "between phases";
    return mark[3] ? `${mark[2]} of step ${mark[3]}` : mark[2];
  }

  what(event) {
    const storage = this.found.storageOf[event];
    if (storage < 0) return "The allocator's cache was emptied.";
    const one = described(this.found, storage);
    const verb = this.found.allocatedAt[storage] === event ? "Allocated" : "Released";
    const whose = one.maker ? ` by ${one.maker}` : one.tensor ? "" : `, ${SMALL}`;
    const where = verb === "Released" && one.maker ? ` (allocated${whose})` : whose;
    return `${verb} ${gib(one.bytes)} of ${words(this.found.packed.components[one.component])}${one.tensor ? `, ${one.tensor}` : ""}${where}.`;
  }

  // The list takes longer than the sentence, so a moving hand gets it once a frame.
  later(event, component) {
    this.wanted = { event, component };
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.showList(this.wanted.event, this.wanted.component);
    });
  }

  showList(event, component) {
    const { components } = this.found.packed;
    const rows = largestAt(this.found, event, component, MOST).map((one) => [
      gib(one.bytes), keyed(components[one.component], words(components[one.component])), one.tensor || "small", one.maker || "", one.operation, one.phase,
    ]);
    const title = component === null ? "Largest tensors then" : `Largest of ${words(components[component])} then`;
    this.list.replaceChildren(element("h3", {}, title), table(["bytes", "what", "tensor", "made by", "operation", "in"], rows, title));
  }
}
