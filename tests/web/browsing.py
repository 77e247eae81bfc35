"""What every page has to be for whoever reads it.

``AXE_CORE`` is the path of axe-core's axe.min.js; without it contrast and labels are not looked at.
"""

import os
from itertools import product
from pathlib import Path
from typing import Any

AXE = os.environ.get("AXE_CORE")
WIDTHS = (1440, 1024, 390)
"""Pixels: of a desk, a tablet and a phone."""


def assert_readable(page: Any) -> None:
    """Nothing is wider than the window, and axe-core finds nothing, in three widths and both schemes."""
    if AXE is not None:
        page.evaluate(Path(AXE).read_text(encoding="utf-8"))
    for width, scheme in product(WIDTHS, ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        while page.evaluate("window.innerWidth") != width:  # wait_for_function evaluates text: the policy forbids it
            page.wait_for_timeout(10)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), width
        found = [] if AXE is None else page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        mistakes = [(one["id"], [node["target"] for node in one["nodes"]]) for one in found]
        assert not mistakes, (width, scheme, mistakes)
