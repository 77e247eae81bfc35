"""What every picture and page keeps to: nothing that is fetched, and nothing that runs but a report's own script."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

SVG = "{http://www.w3.org/2000/svg}"


class Elements(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.inside: list[tuple[str, dict[str, str | None], str]] = []
        """Styles and scripts: the element, its attributes and what it holds."""
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= dict(attrs)
        if tag in ("script", "style"):
            self.inside.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] in ("script", "style") and not self.inside[-1][2]:
            tag, attributes, _ = self.inside[-1]
            self.inside[-1] = (tag, attributes, data)
        else:
            self.texts.append(data)


def brings_everything(text: str) -> None:
    """The picture needs no other file and runs nothing."""
    elements = Elements(text)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(elements.names)
    assert not {"src", "href", "xlink:href", "srcset", "style"} & set(elements.attributes)
    assert "@import" not in text
    assert "url(" not in text
    addresses = re.findall(r"[a-z]+://[^\s\"'<>]+", text)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # the name of the format, which nobody fetches
    assert not any(name.startswith("on") for name in elements.attributes)


UPLOT = "https://github.com/leeoniya/uPlot"
"""What its release says of itself."""


def report_data(page: str) -> dict[str, Any]:
    """What a report's script draws."""
    (text,) = [text for tag, attributes, text in Elements(page).inside if attributes.get("id") == "data"]
    return json.loads(text)


def is_a_report(page: str) -> None:
    """The page brings one style and one script of its own, which its policy names by their hashes; it has a picture and
    tables without them, and asks for no address."""
    elements = Elements(page)
    (style,) = [text for tag, _, text in elements.inside if tag == "style"]
    scripts = [(attributes, text) for tag, attributes, text in elements.inside if tag == "script"]
    assert [attributes for attributes, _ in scripts] == [{"type": "application/json", "id": "data"}, {}]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (scripts[1][1], style)]
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'" in policy
    assert "unsafe" not in policy
    assert "<" not in scripts[0][1]
    assert not {"link", "img", "iframe", "object", "image", "use", "base", "form"} & set(elements.names)
    assert not {"src", "href", "xlink:href", "srcset", "style", "action"} & set(elements.attributes)
    assert not any(name.startswith("on") for name in elements.attributes)
    assert "@import" not in style
    assert "url(" not in style
    assert {"http://www.w3.org/2000/svg", UPLOT} >= set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert {"h1", "h2", "main", "table", "caption"} <= set(elements.names)
