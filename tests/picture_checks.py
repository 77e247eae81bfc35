"""What every picture and page keeps to: nothing that runs, nothing that is fetched."""

import re
from html.parser import HTMLParser

SVG = "{http://www.w3.org/2000/svg}"


class Elements(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= dict(attrs)


def brings_everything(text: str) -> None:
    """The picture or page needs no other file and runs nothing."""
    elements = Elements(text)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(elements.names)
    assert not {"src", "href", "xlink:href", "srcset", "style"} & set(elements.attributes)
    assert "@import" not in text
    assert "url(" not in text
    addresses = re.findall(r"[a-z]+://[^\s\"'<>]+", text)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # the name of the format, which nobody fetches
    assert not any(name.startswith("on") for name in elements.attributes)
