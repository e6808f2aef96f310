"""Texts from templates. In pages all that is given is letters: only what a filter here makes is markup."""

from __future__ import annotations

import base64
import functools
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from neuralpower.files import markdown
from neuralpower.files.terminal import visible

CODE = re.compile(r"`([^`]+)`")
URL = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:)]")


def render(template: str, **values: Any) -> str:
    """A template's text; those whose names hold `.html.` escape what they are given."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("neuralpower.report")
    found = Environment(loader=loader, autoescape=_is_html, undefined=StrictUndefined, trim_blocks=True,
                        lstrip_blocks=True)  # fmt: skip
    found.filters |= {"letters": _letters, "inline": _inline, "base64": _base64, "code": "`{}`".format}
    found.filters |= {"md": markdown.inline, "md_escaped": markdown.escaped}
    found.globals["table"] = _table
    return found


def _is_html(name: str | None) -> bool:
    return name is not None and ".html." in name


def _letters(text: str) -> Markup:
    """Text as it stands, in elements and in quoted attributes."""
    return escape(visible(text.replace("\n", " ")))


def _inline(text: str) -> Markup:
    """Text whose markup is `code` and addresses."""
    with_code = CODE.sub(r"<code>\1</code>", str(_letters(text)))
    return Markup(URL.sub(lambda m: f'<a href="{m[0]}">{m[0]}</a>', with_code))  # an address holds no quotes


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _table(header: Any, rows: Any, right: Any = None) -> str:
    """A Markdown table."""
    return "\n".join(markdown.table(header, rows, right))
