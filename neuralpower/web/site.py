"""The page and its parts, as HTML: what a view shows."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuralpower.api.loaded import chosen
from neuralpower.ask import words
from neuralpower.devices.spec import find_spec, known_specs, labels_of_specs
from neuralpower.errors import InputError, NeuralPowerError, shortened_names
from neuralpower.networks.names.catalogue import catalogue, named
from neuralpower.networks.names.slips import zoo_names
from neuralpower.networks.sources.base import Given, recognised
from neuralpower.prediction.costs.footprint import regions
from neuralpower.report.chart_files import svg_text
from neuralpower.report.charts import XY, Bars, slug
from neuralpower.report.grid import at_most
from neuralpower.report.page import Section, Table, markup
from neuralpower.report.pictures import roofline
from neuralpower.report.tables import prediction_table
from neuralpower.web import drawn
from neuralpower.web.answers import Answer, Failure, KeptAnswers, failure
from neuralpower.web.traffic import Curve, curve_of, first_curve
from neuralpower.web.view import DTYPES, MOST, MOST_DEVICES, PHASES, PREFIX, RANKS, Uploads, View

PRINTED_WIDTH = 100  # letters of the command's answer


class Site:
    """Everything that the server shows; one thread calls it, another one for simulations."""

    def __init__(self, uploads: Uploads, trust_code: bool = False) -> None:
        self.uploads, self.trust_code = uploads, trust_code
        self.answers = KeptAnswers()
        self._curves: dict[tuple[str, str], Curve] = {}  # simulated, by query and device

    # ---- parts ----

    def fitted(self, view: View) -> View:
        """The view for what its model takes; the same where that is not known, and the answer says why."""
        try:
            return view.fitted(self.answers.takes(self._resolved(view.model)))
        except NeuralPowerError:
            return view

    def page(self, view: View, wait: bool = False) -> str:
        """The whole page; `wait`: with nothing computed, since another page's link asks for it."""
        body = "" if wait else self.answer(view)
        return self._whole(view, body, wait=wait)

    def answer(self, view: View) -> str:
        """What follows a change at once: charts, a table, and the commands."""
        found = self._each(view)
        sections = drawn.sections(view, found)
        failures = [one for one in found if isinstance(one, Failure)]
        return markup(
            "web_answer.html.j2",
            view=view,
            sections=sections,
            failures=[(drawn.short(one, view), one.text) for one in failures],
            lines=view.commands(self._called(view.model)),
            said=drawn.said(view, found),
        )

    def around(self, view: View, part: str) -> str:
        """A page with one part of the answer."""
        return self._whole(view, part)

    def details(self, view: View) -> str:
        """The layers on the roofline of each device."""
        return markup(
            "web_part.html.j2",
            view=view,
            sections=self._layers(view),
            failures=(),
            lines=(),
            refined=None,
        )

    def traffic(self, view: View) -> str:
        """The curve over the rate: the simulated one where it is known, else the first estimate."""
        return markup("web_part.html.j2", view=view, **self._served(view))

    def printed(self, view: View) -> str:
        """What the commands print."""
        return markup("web_printed.html.j2", printed=self._printed(view))

    def simulations(self, view: View) -> dict[str, list[str]]:
        """The arguments of the program that simulates the traffic on each device; of those not known yet."""
        found = {}
        for device in view.devices:
            curve = self._curve(view, device)
            if curve is not None and not curve.refined:
                model = self._resolved(view.model)
                found[device] = view.traffic_arguments(model, device, curve.knee.rate)
        return found

    def keep(self, view: View, device: str, answer: Mapping[str, Any]) -> None:
        """Show a simulated curve from now on."""
        self._curves[view.query, device] = curve_of(answer)

    def saved(self, view: View, part: str, kind: str) -> str | list[list[Any]] | None:
        """A chart as SVG, or a table as rows, by its name in the page; None where there is none."""
        sections = drawn.sections(view, self._each(view))
        if part.startswith("layers"):
            sections = self._layers(view)
        if part.startswith("traffic"):
            first = [(device, curve) for device in view.devices if (curve := self._curve(view, device))]
            sections = [drawn.served(view, first)] if first else []
        parts = {_name(section, one.title): one for section in sections for one in section.parts}
        found = parts.get(part)
        if isinstance(found, Table) and kind == "csv":
            return [list(found.header), *(list(row) for row in found.rows)]
        return svg_text([found]) if isinstance(found, (XY, Bars)) and kind == "svg" else None

    def refused(self, text: str) -> str:
        """The page with an error, as the command prints it."""
        return self._whole(View(), self.failed(text), wait=True, failed=True)

    def failed(self, text: str) -> str:
        """An error in the place of an answer."""
        return markup("web_failed.html.j2", text=f"error: {shortened_names(text)}")

    def uploaded(self, model: str) -> str:
        """The query that shows an upload."""
        return View(model=model, batch=View.batch if model.endswith(".json") else 1).query

    # ---- what they are made of ----

    def _whole(self, view: View, body: str, wait: bool = False, failed: bool = False) -> str:
        rows = [*zip(view.devices, view.prices, strict=True)]
        rows += [("", None)] * (MOST_DEVICES - len(rows))
        return markup(
            "web.html.j2",
            view=view,
            body=body,
            wait=wait,
            failed=failed,
            rows=rows,
            devices=_devices(),
            models=_models(),
            phases=PHASES,
            dtypes=DTYPES,
            weights=words.WEIGHTS,
            ranks=RANKS,
            regions=sorted(regions().items(), key=lambda one: one[1]),
            most=MOST,
            trust=self.trust_code,
        )

    def _each(self, view: View) -> list[Answer | Failure]:
        try:
            model = self._resolved(view.model)
        except NeuralPowerError as error:
            return [failure(device, error) for device in view.devices]
        return self.answers.each(view, model)

    def _resolved(self, model: str) -> str:
        """A model as `resolve` takes it; raises InputError for files and code that are not read."""
        if model.startswith(PREFIX):
            _, mark, changes = model.partition("?")
            return f"{self.uploads.path(model)}{mark}{changes}"
        given = Given(model)
        source = recognised(given)
        by_name = source is None or source.prefix or named(given.location)
        if self.trust_code or (by_name and not (source is not None and source.runs_code)):
            return model
        raise InputError(
            f"model {model[:100]!r}: is a file or code of this machine, which the page does not read; upload "
            "its config.json or .onnx file, or start the server with --trust-code"
        )

    @staticmethod
    def _called(model: str) -> str:
        """A model as the command takes it: an upload by the name of its file."""
        return model.rpartition("/")[2] if model.startswith(PREFIX) else model

    def _layers(self, view: View) -> list[Section]:
        """The roofline of each device; one that cannot be drawn is skipped: the answer says why."""
        charts: list[XY] = []
        for device in view.devices:
            try:
                model = self._resolved(view.model)
                found = self.answers.prediction(view, device, model)
            except NeuralPowerError:
                continue
            name = drawn.short(Failure(find_spec(device).name, ""), view)
            charts.append(drawn.rooflined(found, roofline(found, chosen(device).predictor), name))
        return [Section("Layers", (), tuple(charts))] if charts else []

    def _printed(self, view: View) -> list[tuple[str, str]]:
        """(command, what it prints) of each device."""
        found = []
        for device, command in zip(view.devices, view.commands(self._called(view.model)), strict=True):
            try:
                prediction = self.answers.predicted(view, device, self._resolved(view.model))
                with at_most(PRINTED_WIDTH):
                    text = prediction_table(prediction, "kind", 3, 15)
            except NeuralPowerError as error:
                text = failure(device, error).text
            found.append((command, text))
        return found

    def _served(self, view: View) -> dict[str, Any]:
        curves, failures, lines = [], [], list[str]()
        called = self._called(view.model)
        for device in view.devices:
            name = drawn.short(Failure(find_spec(device).name, ""), view)
            try:
                curves.append((name, self._first(view, device)))
                lines.append(view.traffic_command(called, device, curves[-1][1].knee.rate))
            except NeuralPowerError as error:
                failures.append((name, failure(device, error).text))
        sections = [drawn.served(view, curves)] if curves else []
        refined = bool(curves) and all(curve.refined for _, curve in curves)
        return {"sections": sections, "failures": failures, "lines": lines, "refined": refined}

    def _curve(self, view: View, device: str) -> Curve | None:
        try:
            return self._first(view, device)
        except NeuralPowerError:
            return None

    def _first(self, view: View, device: str) -> Curve:
        if (found := self._curves.get((view.query, device))) is not None:
            return found
        served = self._speaking(view)
        model = self._resolved(view.model)
        surface = self.answers.surface(served, device, model)
        left = (find_spec(device).get("memory_bytes") or 0.0) * 0.9 - surface.weights_bytes
        held = left / max(surface.cache_bytes, 1.0)
        if held < view.input + view.output:
            raise InputError(
                f"{view.model} on {view.place(device)}: its weights leave no memory for a request's cache; "
                "choose more ranks, smaller weights or another device"
            )
        return first_curve(surface, view.input, view.output, held)

    @staticmethod
    def _speaking(view: View) -> View:
        """The same view of the steps of an engine."""
        return view if view.phase == "decode" else replace(view, phase="decode", context=view.context or 1024)


def _name(section: Section, title: str) -> str:
    """A part's name in addresses."""
    return f"{slug(section.title)}-{slug(title)}"


@functools.cache
def _devices() -> list[tuple[str, str]]:
    """(slug, name) of each device with a sheet, by name."""
    return sorted(((slug, labels_of_specs()[slug][0]) for slug in known_specs()), key=lambda one: one[1])


@functools.cache
def _models() -> list[str]:
    """Names to choose from."""
    return [*catalogue(), *(f"zoo:{name}" for name in zoo_names())]
