"""A page as a parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """Tags with their attributes, and the text outside style and script."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self.text += " "
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]].append(data)
        else:
            self.text += data

    def values(self, tag: str, attribute: str) -> list[str]:
        """Return an attribute of all tags of one name that have it."""
        return [attrs[attribute] for name, attrs in self.tags if name == tag and attribute in attrs]

    @property
    def ids(self) -> list[str]:
        """Every id, in order."""
        return [attrs["id"] for _, attrs in self.tags if "id" in attrs]

    @property
    def words(self) -> str:
        """The text, white space made single."""
        return " ".join(self.text.split())
