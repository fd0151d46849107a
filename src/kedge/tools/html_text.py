"""HTML as Markdown, or as its words alone: enough for a model to read a page, and text whatever the markup."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urljoin

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe", "canvas"})
_BLOCKS = frozenset(
    {"p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "ul", "ol", "table", "form",
     "blockquote", "figure", "figcaption", "address", "dl", "dd", "dt", "fieldset", "details", "summary", "hr"}
)  # fmt: skip
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`"}
_SPACES = re.compile(r"[ \t\r\n\f]+")
_BLANK_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*\n")
_MAX_DEPTH = 20  # of lists; deeper ones are not indented further


def markdown_of(html: str, base_url: str, *, is_plain: bool = False) -> tuple[str, str]:
    """The title and the text of a page; links are made absolute. `is_plain`: without links and marks."""
    reader = _Reader(base_url, is_plain)
    reader.feed(html)
    reader.finish()
    text = _BLANK_LINES.sub("\n\n", "".join(reader.pieces)).strip()
    return _SPACES.sub(" ", "".join(reader.title)).strip(), text


class _Reader(HTMLParser):
    def __init__(self, base_url: str, is_plain: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._base_url = base_url
        self._is_plain = is_plain
        self._silent: list[str] = []
        self._is_title = False
        self._pre = 0
        self._lists: list[int | None] = []  # the next number of an ordered one
        self._links: list[str | None] = []

    def finish(self) -> None:
        """What was begun and never ended is text. `close` would look for its end again from every `<` in it."""
        rest, self.rawdata = self.rawdata, ""
        self.handle_data(unescape(rest))

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """`<![…` is a comment in HTML, whatever follows."""
        del report
        return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title" and not self.title:
            self._is_title = True
        if tag in _SILENT and tag not in self._silent:
            self._silent.append(tag)
        if self._silent:
            return
        fields = dict(attrs)
        match tag:
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                self._put("\n\n")
                self._mark(f"{'#' * int(tag[1])} ")
            case "br":
                self._put("\n")
            case "pre":
                self._pre += 1
                self._put("\n\n")
                self._mark("```\n")
            case "ul" | "ol":
                self._lists.append(1 if tag == "ol" else None)
                self._put("\n")
            case "li":
                self._put(self._bullet())
            case "tr":
                self._put("\n| ")
            case "a":
                href = fields.get("href")
                self._links.append(href)
                self._mark("[" if href else "")
            case "img":
                self._mark(f"![{fields['alt']}]" if fields.get("alt") else "")
            case _ if tag in _MARKS and not self._pre:
                self._mark(_MARKS[tag])
            case _ if tag in _BLOCKS:
                self._put("\n\n")
            case _:
                pass

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._is_title = False
        if self._silent:
            if tag in self._silent:
                del self._silent[self._silent.index(tag) :]
            return
        match tag:
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                self._put("\n\n")
            case "pre" if self._pre:
                self._pre -= 1
                self._mark("\n```")
                self._put("\n\n")
            case "ul" | "ol" if self._lists:
                self._lists.pop()
                self._put("\n")
            case "td" | "th":
                self._put(" | ")
            case "a" if self._links:
                href = self._links.pop()
                self._mark(f"]({_absolute(self._base_url, href)})" if href else "")
            case _ if tag in _MARKS and not self._pre:
                self._mark(_MARKS[tag])
            case _ if tag in _BLOCKS:
                self._put("\n\n")
            case _:
                pass

    def handle_data(self, data: str) -> None:
        if self._is_title:
            self.title.append(data)
        elif not self._silent:
            text = data if self._pre else _SPACES.sub(" ", data)
            if text == " " and self.pieces and self.pieces[-1].endswith(("\n", " ")):
                return
            self._put(text)

    def _put(self, text: str) -> None:
        if text:
            self.pieces.append(text)

    def _mark(self, text: str) -> None:
        if not self._is_plain:
            self._put(text)

    def _bullet(self) -> str:
        indent = "  " * min(_MAX_DEPTH, max(0, len(self._lists) - 1))
        number = self._lists[-1] if self._lists else None
        if number is None:
            return f"\n{indent}- "
        self._lists[-1] = number + 1
        return f"\n{indent}{number}. "


def _absolute(base_url: str, href: str) -> str:
    try:
        return urljoin(base_url, href.strip())
    except ValueError:
        return href
