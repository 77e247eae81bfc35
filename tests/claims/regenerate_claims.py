"""Ask the tool every claim again, store its answers in ``guide_*.yaml`` and write README.md.

Run it as ``python tests/claims/regenerate_claims.py``. It names what it changed.
"""

import json
import os
import re
from pathlib import Path

import yaml
from claim_table import HERE, README, Answer, asked, found_answer, guide_files, guides, readme_text

ANSWER_LINE = re.compile(r"^(?P<key>\s*answer: )(?P<answer>\{.*\})$", re.MULTILINE)
DIGITS = 4


def stored_form(answer: Answer) -> str:
    rounded = {
        name: value if isinstance(value, str) else float(f"{value:.{DIGITS}g}") for name, value in answer.items()
    }
    return json.dumps(rounded, ensure_ascii=False)


def regenerate(path: Path) -> list[str]:
    """Replace the answers of one file; what changed, a sentence each."""
    text = path.read_text(encoding="utf-8")
    guide = yaml.safe_load(text)
    questions = [(claim["id"], *question) for claim in guide["claims"] for question in asked(guide, claim)]
    if len(questions) != len(ANSWER_LINE.findall(text)):
        raise ValueError(f"{path.name}: every answer has to be on one line, as answer: {{...}}")
    changes: list[str] = []
    lines: list[str] = []
    for name, options, stored in questions:
        found = found_answer(options, stored)
        lines.append(stored_form(found))
        if found.get("verdict") != stored.get("verdict") or found.get("refused") != stored.get("refused"):
            changes.append(f"{path.stem} {name}: {stored.get('verdict')} is now {found.get('verdict')} ({options})")
    answers = iter(lines)
    path.write_text(ANSWER_LINE.sub(lambda match: match["key"] + next(answers), text), encoding="utf-8")
    return changes


def main() -> None:
    os.chdir(HERE)
    for path in guide_files():
        for change in regenerate(path):
            print(change)
    README.write_text(readme_text(guides()), encoding="utf-8")


if __name__ == "__main__":
    main()
