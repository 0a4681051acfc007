"""HTML as a browser reads it, and the words of both forms of an object."""

from __future__ import annotations

from html.parser import HTMLParser

OWN = {"div", "b", "details", "summary", "table", "tr", "th", "td", "span", "caption"}


class Read(HTMLParser):
    """The text of what loopkit shows; any element or attribute that is not loopkit's own fails."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in OWN
        assert [name for name, _ in attrs] in ([], ["style"])
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_data(self, data: str) -> None:
        assert self.open
        if self.open[-1] != "span":  # a front end would begin a formula there
            assert "$" not in data
            assert "\\" not in data
        self.text += data


def bare(text: str) -> str:
    """Without blanks and without the marks that only one of the forms needs."""
    return "".join(text.split()).translate(dict.fromkeys(map(ord, ":,")))
