"""The whole file: one HTML page with its styles, its script and what the script draws, and nothing from elsewhere.

Its content security policy allows this one style and this one script by their hashes, and no address at all. Without
scripts everything that is said stands in tables, and pictures stand still.
"""

import base64
import hashlib
import json
from collections.abc import Iterable

from vlmplan.files.json_reader import JsonDict
from vlmplan.reports.bundle import script, style
from vlmplan.reports.elements import cleaned, escaped
from vlmplan.version import __version__

SCRIPT = "reports/report.js"
TIMELINE_SCRIPT = "reports/rehearsal.js"


def page(title: str, subtitle: str, sections: Iterable[str], data: JsonDict) -> str:
    """The file. ``data`` is what its script draws: ``estimate``, ``points``, ``plans``, ``timeline``, as far as there
    are such charts."""
    has_timeline = "timeline" in data
    styles = style(has_timeline=has_timeline)
    code = script(TIMELINE_SCRIPT if has_timeline else SCRIPT, has_timeline=has_timeline)
    inside = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(styles, code)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)}</title>
<style>{styles}</style>
</head>
<body class="report">
<header>
<h1>{escaped(title)}</h1>
<p class="quiet">{escaped(subtitle)}</p>
</header>
<main id="answer">
{inside}
</main>
<footer class="quiet">vlmplan {escaped(__version__)}</footer>
<script type="application/json" id="data">{_json(data)}</script>
<script>{code}</script>
</body>
</html>
"""


def _policy(styles: str, code: str) -> str:
    """Source: https://www.w3.org/TR/CSP3/#match-element-to-source-list."""
    return (
        f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(styles)}'; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


def _json(data: JsonDict) -> str:
    """JSON that no name in it can end: every ``<`` is written out."""
    text = json.dumps(cleaned(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
