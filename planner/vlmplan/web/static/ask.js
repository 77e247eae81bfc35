// Questions to the planner: to this page's server, one at a time, the newest last.

async function fromServer(question) {
  const response = await fetch("answer", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
  return response.json();
}

let ask = fromServer;

export async function answerTo(question) {
  try {
    return await ask(question);
  } catch {
    return { error: "the planner does not answer; is vlmplan web still running?" };
  }
}

// Of questions that come while one is answered, the last alone is asked next.
export function latestOnly(show) {
  let isBusy = false;
  let next = null;
  return async function put(question) {
    next = question;
    if (isBusy) return;
    isBusy = true;
    while (next !== null) {
      const current = next;
      next = null;
      const answer = await answerTo(current);
      if (next === null) show(answer, current);
    }
    isBusy = false;
  };
}
