"""Generate the table of docs/configuration.md, and docs/config.schema.json.

usage: python -m tests.config.reference_page
"""

from __future__ import annotations

import json

from kedge.config.environment import variable_for
from kedge.config.schema import json_schema
from kedge.config.schema_tree import Leaf, iter_leaves
from tests.server.process import ROOT

PAGE = ROOT / "docs" / "configuration.md"
SCHEMA = ROOT / "docs" / "config.schema.json"
MARK = "<!-- made from the schema by: python -m tests.config.reference_page -->\n"
CHOSEN = {
    "keys": "ACTION",
    "providers": "NAME",
    "models": "MODEL",
    "mcp": "SERVER",
    "lsp": "SERVER",
    "settings": "SETTING",
    "options": "OPTION",
    "env": "VARIABLE",
    "headers": "HEADER",
    "extra_body": "FIELD",
}
FROM_REPOSITORY = {"yes": "yes", "stricter": "stricter", "no": "trusted"}


def table() -> str:
    rows = [
        "| key | description | value | default | variable | in `kedge.toml` |",
        "| --- | --- | --- | --- | --- | --- |",
        *(row(path, leaf) for path, leaf in iter_leaves()),
    ]
    return "".join(f"{line}\n" for line in rows)


def row(path: tuple[str, ...], leaf: Leaf) -> str:
    variable = variable_for(path)
    where = "only in your own file" if path == ("trusted",) else FROM_REPOSITORY[leaf.untrusted]
    cells = [
        f"`{key_of(path)}`",
        leaf.description,
        leaf.expected,
        default_of(leaf),
        f"`{variable}`" if variable else "",
        where,
    ]
    return f"| {' | '.join(cells)} |"


def key_of(path: tuple[str, ...]) -> str:
    names = [CHOSEN[before] if name == "*" else name for before, name in zip(("", *path), path, strict=False)]
    return ".".join(names)


def default_of(leaf: Leaf) -> str:
    if leaf.default is None:
        return ""
    return f"`{json.dumps(leaf.default)}`"


def page() -> str:
    return PAGE.read_text().partition(MARK)[0] + MARK + "\n" + table()


if __name__ == "__main__":
    PAGE.write_text(page())
    SCHEMA.write_text(json_schema())
