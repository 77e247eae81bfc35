// node bytecode.mjs FOLDER: what bytecode.py makes of the archives in FOLDER, by the Pyodide in FOLDER/pyodide, in their
// places. Node comes with the npm that Pyodide is installed by.

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder] = process.argv;
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide/pyodide.mjs`).href);
const python = await loadPyodide({ indexURL: `${folder}/pyodide/` });
python.runPython(readFileSync(`${folder}/bytecode.py`, "utf-8"));

for (const [name, keepsDocstrings] of [["planner.zip", "True"], ["pyodide/python_stdlib.zip", "False"]]) {
  python.FS.writeFile("/archive.zip", readFileSync(`${folder}/${name}`));
  python.runPython(`
content = compiled_archive(Path("/archive.zip").read_bytes(), keeps_docstrings=${keepsDocstrings})
Path("/archive.zip").write_bytes(content)`);
  writeFileSync(`${folder}/${name}`, python.FS.readFile("/archive.zip"));
}
