"""Texts in templates next to the code, with `value|to(".3g")` and `value|quantity("FLOP/s")`."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from neuralpower.report.number_format import quantity


def template(package: str, name: str, **filters: object) -> Template:
    """The template of that file in a package, with more filters; it makes plain text."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update({"to": _to, "quantity": quantity, **filters})
    return environment.from_string(files(package).joinpath(name).read_text(encoding="utf-8"))


def _to(value: float, form: str) -> str:
    """A number in a format; one of 1,000 or more with all digits before the point, in groups of three."""
    return f"{value:,.0f}" if form.endswith("g") and abs(value) >= 999.5 else format(value, form)
