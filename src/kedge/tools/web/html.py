"""HTML converted to Markdown or plain text for a model, however broken the markup is.

Time is linear in the size of the page and bounded by `MAX_STEPS`, because a thread cannot be stopped from outside.
"""

from __future__ import annotations

import re
from html import unescape
from itertools import islice
from urllib.parse import urljoin

# A tag, a comment or a character reference is one step, a link some more: about a second in all. The longest articles
# of Wikipedia need a third of it.
MAX_STEPS = 200_000
_MAX_ATTRIBUTES = 100  # of one tag
_MAX_LINK_CHARS = 8_000  # longer links are not made absolute
_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe", "canvas"})
_BLOCKS = frozenset(
    {"p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "ul", "ol", "table", "form",
     "blockquote", "figure", "figcaption", "address", "dl", "dd", "dt", "fieldset", "details", "summary", "hr",
     "h1", "h2", "h3", "h4", "h5", "h6"}
)  # fmt: skip
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`"}
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])")
_NAME = re.compile(r"[A-Za-z][^\s/>]*+")
_TAG_END = re.compile(r">|=\s*+[\"']")
_ATTRIBUTE = re.compile(r"""([^\s/>=]++)\s*+(?:=\s*+("[^"]*+"|'[^']*+'|[^\s"'>][^\s>]*+)?+)?+""")
_RAW_TEXT_ENDS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_SPACES = re.compile(r"[ \t\r\n\f]+")
_BLANK_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*\n")
_MAX_DEPTH = 20  # of indented lists


def html_to_markdown(html: str, base_url: str, *, is_plain: bool = False) -> tuple[str, str]:
    """Return the title and the text of a page, with absolute links; with `is_plain` without links and emphasis."""
    reader = _Reader(base_url, is_plain)
    reader.read(html)
    text = _BLANK_LINES.sub("\n\n", "".join(reader.pieces)).strip()
    if reader.is_cut:
        text += "\n\n(The rest of the page was left out, because it has too much markup.)"
    return _SPACES.sub(" ", "".join(reader.title)).strip(), text


class _Reader:
    def __init__(self, base_url: str, is_plain: bool) -> None:
        self.pieces: list[str] = []
        self.title: list[str] = []
        self.is_cut = False
        self._steps = 0
        self._base_url = base_url
        self._is_plain = is_plain
        self._silent: list[str] = []
        self._is_title = False
        self._pre = 0
        self._lists: list[int | None] = []  # the next number of an ordered one
        self._links: list[str | None] = []

    def read(self, html: str) -> None:
        at = 0
        while at < len(html) and not self.is_cut:
            markup = _MARKUP.search(html, at)
            start = len(html) if markup is None else markup.start()
            if start > at:
                self._text(html[at:start])
            if markup is None:
                return
            end = self._markup(html, start)
            if end < 0:  # never closed: the rest is text
                self._text(html[start:])
                return
            at = end
            self._step()

    def _step(self, count: int = 1) -> None:
        self._steps += count
        self.is_cut = self._steps > MAX_STEPS

    def _text(self, raw: str) -> None:
        self._step(raw.count("&"))
        self.handle_data(_unescape(raw) if not self.is_cut else raw)

    def _markup(self, html: str, start: int) -> int:
        """Handle the markup that begins at `start`. Returns the index after it, or -1."""
        if html.startswith("<!--", start):
            end = html.find("-->", start + 2)
            return end if end < 0 else end + 3
        is_end = html.startswith("/", start + 1)
        name = _NAME.match(html, start + (2 if is_end else 1))
        if name is None:  # a declaration or a bogus comment
            return html.find(">", start) + 1 or -1
        end = self._tag_end(html, name.end())
        if end < 0:
            return -1
        tag = name[0].lower()
        if is_end:
            self.handle_endtag(tag)
            return end
        attributes = html[name.end() : end - 1]
        self.handle_starttag(tag, attributes)
        if attributes.endswith("/"):
            self.handle_endtag(tag)
        elif tag in _RAW_TEXT_ENDS:
            closing = _RAW_TEXT_ENDS[tag].search(html, end)
            return len(html) if closing is None else closing.start()
        return end

    def _tag_end(self, html: str, at: int) -> int:
        """Return the index after the `>` that ends a tag, skipping quoted values; -1 if there is none."""
        while (found := _TAG_END.search(html, at)) is not None:
            at = found.end()
            if found[0] == ">":
                return at
            self._step()
            if self.is_cut:
                return len(html)
            at = html.find(found[0][-1], at) + 1 or at
        return -1

    def handle_starttag(self, tag: str, attributes: str) -> None:
        if tag == "title" and not self.title:
            self._is_title = True
        if tag in _SILENT and tag not in self._silent:
            self._silent.append(tag)
        if self._silent:
            return
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
                href = _attribute(attributes, "href")
                self._links.append(href)
                self._mark("[" if href else "")
            case "img":
                alt = _attribute(attributes, "alt")
                self._mark(f"![{alt}]" if alt else "")
            case _:
                self._handle_either_end(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._is_title = False
        if self._silent:
            if tag in self._silent:
                del self._silent[self._silent.index(tag) :]
            return
        match tag:
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
                self._step(5 + (len(self._base_url) + len(href or "")) // 20)
                self._mark(f"]({_make_absolute(self._base_url, href)})" if href else "")
            case _:
                self._handle_either_end(tag)

    def _handle_either_end(self, tag: str) -> None:
        """Handle a tag that means the same at the start and at the end of an element."""
        if tag in _MARKS and not self._pre:
            self._mark(_MARKS[tag])
        elif tag in _BLOCKS:
            self._put("\n\n")

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


def _attribute(attributes: str, wanted: str) -> str | None:
    for found in islice(_ATTRIBUTE.finditer(attributes), _MAX_ATTRIBUTES):
        if found[1].lower() == wanted:
            value = found[2] or ""
            return _unescape(value[1:-1] if value[:1] in ("'", '"') else value)
    return None


def _unescape(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a character number with thousands of digits
        return text


def _make_absolute(base_url: str, href: str) -> str:
    if len(href) > _MAX_LINK_CHARS:
        return href
    try:
        return urljoin(base_url, href.strip())
    except ValueError:
        return href
