// Questions to the planner: to this page's server, or to a worker where the page is files alone.

async function fromServer(question) {
  const response = await fetch("answer", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
  return response.json();
}

// The planner itself, in a worker. Questions have numbers, because answers come when they come.
function fromWorker() {
  const worker = new Worker("worker.js", { type: "module" });
  const waiting = new Map();
  let number = 0;
  worker.addEventListener("message", ({ data }) => {
    waiting.get(data.number)(JSON.parse(data.text));
    waiting.delete(data.number);
  });
  return (question) =>
    new Promise((done) => {
      number += 1;
      waiting.set(number, done);
      worker.postMessage({ number, question });
    });
}

export const isExported = document.querySelector("meta[name=planner][content=worker]") !== null;
const ask = isExported ? fromWorker() : fromServer;

export async function answerTo(question) {
  try {
    return await ask(question);
  } catch {
    return { error: "the planner does not answer; is vlmplan web still running?" };
  }
}

// A function to call at every change. `steps` are taken one after the other, each with the answer that it shows, and begun
// again when something changes; an answer to what was asked before a change is not shown. A change ends a pause at once.
export function follower(steps) {
  let version = 0;
  let finished = 0;
  let isBusy = false;
  let wake = () => {};
  const rest = (milliseconds) =>
    new Promise((done) => {
      const timer = setTimeout(done, milliseconds);
      wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  async function follow() {
    isBusy = true;
    while (finished !== version) {
      const current = version;
      const isCurrent = () => current === version;
      for (const { after, question, show } of steps) {
        if (after) await rest(after);
        if (!isCurrent()) break;
        const asked = question();
        if (asked === null) continue;
        const answer = await answerTo(asked);
        if (isCurrent()) show(answer);
      }
      if (isCurrent()) finished = current;
    }
    isBusy = false;
  }
  return function changed() {
    version += 1;
    wake();
    if (!isBusy) follow();
  };
}
