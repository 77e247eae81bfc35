// The planner in the browser: Python by Pyodide, in a worker, so that the page goes on while it thinks.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const START = `
import json, os, sys
sys.path.insert(0, "/planner")
os.environ["HF_HUB_OFFLINE"] = "1"  # there is no network to ask
from vlmplan.cli.web_answer import answer

def answer_text(question):
    return json.dumps(answer(json.loads(question)))

answer_text
`;
const OWN_MISTAKE = JSON.stringify({ error: "vlmplan made a mistake of its own with this setup; the browser's console says which" });

async function planner() {
  const archive = fetch("planner.zip").then((response) => response.arrayBuffer()); // on its way while Python starts
  const python = await loadPyodide({ indexURL: new URL("pyodide/", self.location.href).href });
  python.unpackArchive(await archive, "zip", { extractDir: "/planner" });
  return python.runPython(START);
}

const ready = planner();

self.addEventListener("message", async ({ data }) => {
  let text = OWN_MISTAKE;
  try {
    text = (await ready)(JSON.stringify(data.question));
  } catch (error) {
    console.error(error);
  }
  self.postMessage({ number: data.number, text });
});
