"""Texts from templates. Pages escape all values; only the filters here make markup."""

from __future__ import annotations

import base64
import functools
import importlib.resources
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from neuralpower.files import markdown
from neuralpower.files.terminal import visible

CODE = re.compile(r"`([^`]+)`")
URL = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:)]")


def render(template: str, **values: Any) -> str:
    """A template's text; HTML templates escape their values."""
    return _environment().get_template(template).render(values)


def stylesheet() -> str:
    """How pages and charts look."""
    return importlib.resources.files("neuralpower.report").joinpath("page.css").read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("neuralpower.report"),
        autoescape=lambda name: name is not None and ".html." in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"letters": _letters, "inline": _inline, "code": "`{}`".format}
    found.filters |= {"md": markdown.inline, "md_escaped": markdown.escaped}
    found.filters["base64"] = lambda data: base64.b64encode(data).decode()
    found.globals["table"] = lambda header, rows, right=None: "\n".join(markdown.table(header, rows, right))
    return found


def _letters(text: str) -> Markup:
    return escape(visible(text.replace("\n", " ")))


def _inline(text: str) -> Markup:
    """Escaped text whose `code` and addresses become markup."""
    with_code = CODE.sub(r"<code>\1</code>", str(_letters(text)))
    return Markup(
        URL.sub(lambda m: f'<a href="{m[0]}">{m[0]}</a>', with_code)
    )  # an address contains no quotes
