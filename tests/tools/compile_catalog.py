"""Write ``planner/vlmplan/data/gpu_catalog.jsonl`` after gpu_catalog.yaml has changed:

python tests/tools/compile_catalog.py
"""

from pathlib import Path

import yaml

from vlmplan.catalog.compiled import COMPILED_CATALOG, compiled

CATALOG = Path(__file__).parents[2] / "gpu_catalog.yaml"


def content() -> str:
    text = CATALOG.read_text(encoding="utf-8")
    return compiled(text, yaml.safe_load_all(text))


if __name__ == "__main__":
    COMPILED_CATALOG.write_text(content(), encoding="ascii")
