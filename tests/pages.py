"""What is in a report, unpacked as a browser unpacks it."""

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any

# Elements and attributes by which a page would ask for something or run something.
_LOADING = {"href", "src", "srcset", "data", "action", "poster", "background", "cite"}


class Parsed(HTMLParser):
    """The elements of an HTML text.

    Attributes:
        tags: the elements, with their attributes.
        text: all text outside of scripts and styles.
        raw: contents of scripts and styles, by their id, or by the name of the element.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: dict[str, str] = {}
        self._within: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = (dict(attrs).get("id") or tag) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._within = None

    def handle_data(self, data: str) -> None:
        if self._within:
            self.raw[self._within] = self.raw.get(self._within, "") + data
        else:
            self.text += data

    def addresses(self) -> list[str]:
        """Everything that an element refers to."""
        return [
            value
            for _, attributes in self.tags
            for name, value in attributes.items()
            if name in _LOADING and value is not None
        ]


def unpacked(content: str) -> str:
    """The text that was packed into an element."""
    return gzip.decompress(base64.b64decode(content)).decode()


def runs_in(html: str) -> dict[str, Any]:
    """The details of the runs of a page, by name: `html`, `curves`, `scores`."""
    data = unpacked(Parsed(html).raw["data"])
    details: dict[str, Any] = json.loads(data, parse_constant=_refuse)
    return details


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} isn't JSON, and a browser shows no run of the page")
