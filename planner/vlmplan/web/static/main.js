// The page: a change of the setup asks the planner, and what it answers is drawn.

import { answerTo, follower, isExported } from "./ask.js";
import { showDetails, showFiles, showReading, showVerdict } from "./answer.js";
import { showComparison } from "./compare.js";
import { byId, element } from "./dom.js";
import { kinds, machineOptions, makeForm, showSetup } from "./form.js";
import { onPhase, showMemory } from "./memory.js";
import { showModules } from "./modules.js";
import { showOffers } from "./offers.js";
import * as state from "./state.js";
import { showTime } from "./time.js";
import { duration, gib } from "./units.js";

const WHOLE_AFTER_MS = 150; // what would help and the files are asked for when a hand rests
const OFFERS_AFTER_MS = 300;

let notSearched = []; // options that a search for offers leaves open
let latest = null;
let offers = null;
let modules = null; // of the latest answer, where somebody looks inside
let listedRow = null; // the bar that is listed
let kept = { question: null, answer: null }; // of the setup that is compared with
let looksAtOffers = false; // the search takes longest, so it waits until somebody looks

const changed = follower([
  { after: 0, question: () => ({ ask: "first look", options: state.asked() }), show },
  { after: 0, question: keptQuestion, show: showKept },
  { after: WHOLE_AFTER_MS, question: () => ({ ask: "estimate", options: state.asked() }), show },
  { after: 0, question: () => (byId("inside").open ? { ask: "modules", options: state.asked() } : null), show: showInside },
  { after: OFFERS_AFTER_MS, question: offersQuestion, show: showSearch },
]);

// The kept setup is asked for once.
function keptQuestion() {
  if (state.kept === null) return null;
  const options = state.asked(state.kept);
  return JSON.stringify(options) === kept.question ? null : { ask: "first look", options };
}

function showKept(answer) {
  kept = { question: JSON.stringify(state.asked(state.kept)), answer };
  if (latest) drawComparison();
}

function drawComparison() {
  const isAsked = state.kept !== null && kept.question !== JSON.stringify(state.asked(state.kept));
  if (isAsked) return; // its answer is on its way
  byId("comparison-section").hidden = state.kept === null;
  if (state.kept !== null) showComparison(byId("comparison"), kept.answer, latest);
}

function offersQuestion() {
  if (!looksAtOffers) return null;
  const options = Object.entries(state.asked()).filter(([name]) => !notSearched.includes(name));
  return { ask: "recommend", options: Object.fromEntries(options) };
}

function showInside(answer) {
  modules = answer.error ? null : answer.modules;
  drawInside();
}

function drawInside() {
  if (modules === null || listedRow === null) return;
  showModules(byId("modules"), modules, listedRow);
  document.body.dataset.inside = "drawn";
}

function showSearch(answer) {
  offers = answer;
  drawOffers();
}

function show(answer) {
  byId("problem").hidden = !answer.error;
  byId("problem").textContent = answer.error ?? "";
  document.body.classList.toggle("stale", Boolean(answer.error));
  if (!answer.error) {
    latest = answer;
    modules = null;
    draw();
    showSetup(answer.document);
  } else {
    if (!latest) byId("verdict").replaceChildren();
    showSetup(null);
  }
  document.body.dataset.answered = answer.error ? "error" : answer.command ? "whole" : "first";
  performance.mark("drawn");
}

function draw() {
  for (const name of ["memory", "time", "details", "offers"]) byId(`${name}-section`).hidden = false;
  showVerdict(byId("verdict"), latest);
  showMemory(byId("memory"), latest);
  drawComparison();
  showTime(byId("time"), latest);
  showDetails(byId("details"), latest);
  showReading(byId("reading"), latest.reading);
  if (latest.command) {
    byId("files-section").hidden = false;
    showFiles(byId("files"), latest);
  }
  summarize(latest.document);
  document.title = `${latest.document.verdict.replaceAll("_", " ")}: ${latest.document.model.id} · vlmplan`;
}

// What stays in sight of a narrow window while the setup is changed.
function summarize(document) {
  const { verdict, peak_device_bytes: taken, gpu, step_seconds: seconds } = document;
  const time = seconds === null ? "" : `, ${duration(seconds)} a step`;
  byId("summary").hidden = false;
  byId("summary").textContent = `${verdict.replaceAll("_", " ")}: ${gib(taken)} of ${gib(gpu.usable_bytes)}${time}`;
}

function drawOffers() {
  if (offers === null) return;
  if (offers.error) {
    byId("offers").replaceChildren(element("p", {}, offers.error));
    return;
  }
  showOffers(byId("offers"), offers, state.options.gpu, (point) => {
    state.change({ ...point.recipe, zero_stage: String(point.recipe.zero_stage), gpu: point.gpu,
      num_nodes: point.num_nodes > 1 ? point.num_nodes : null });
  });
  document.body.dataset.offers = "drawn";
}

function watchOffers() {
  const observer = new IntersectionObserver((entries) => {
    const wasLooking = looksAtOffers;
    looksAtOffers = entries.some((entry) => entry.isIntersecting);
    if (looksAtOffers && !wasLooking && latest) changed();
  }, { rootMargin: "200px" });
  observer.observe(byId("offers-section"));
}

async function start() {
  const form = await answerTo({ ask: "form", options: {} });
  if (form.error) return show(form);
  byId("version").textContent = `${form.version}, ${isExported ? "in this browser" : "on this machine"}`;
  notSearched = form.not_searched;
  makeForm(form);
  state.keepBesideConfig(machineOptions());
  state.onChange(() => {
    delete document.body.dataset.answered;
    delete document.body.dataset.offers;
    delete document.body.dataset.inside;
    if (state.kept === null) kept = { question: null, answer: null };
    showSetup(latest?.document ?? null);
    performance.mark("asked");
    changed();
  });
  window.addEventListener("popstate", () => state.readAddress(kinds()));
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    if (latest) draw();
    drawOffers();
  });
  state.readAddress(kinds());
  watchOffers();
  onPhase((row) => {
    listedRow = row;
    drawInside();
  });
  byId("inside").addEventListener("toggle", () => {
    if (byId("inside").open && latest && modules === null) changed();
  });
}

start();
