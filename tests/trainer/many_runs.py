"""Several runs one after the other in the same processes, since importing the libraries takes longer than a tiny run.

Started on every rank with a JSON list of [plan.json, output folder, arguments...].
"""

import json
import os
import sys
import traceback
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"


def main(jobs_file: str, results_file: str) -> None:
    from vlmplan_trainer.__main__ import main as trained

    results = {}
    for plan, folder, *words in json.loads(Path(jobs_file).read_text()):
        try:
            results[folder] = trained(["--plan", plan, "--output-dir", folder, *words])
        except Exception:
            results[folder] = traceback.format_exc()
    if os.environ.get("RANK", "0") == "0":
        Path(results_file).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
