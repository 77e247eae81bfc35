// The report of a rehearsal: a report with memory over time.

import { byId } from "../dom.js";
import { data } from "./report.js";
import { showTimeline } from "./timeline.js";

showTimeline(byId("timeline"), data.timeline).then(() => {
  byId("timeline-still").classList.add("for-print");
  document.body.dataset.drawn = "all";
});
