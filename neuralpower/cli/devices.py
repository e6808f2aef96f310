"""`neuralpower devices`: this machine's devices and meters, known predictors, and spec sheets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from neuralpower.ask.output import Output
from neuralpower.ask.words import INPUT
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.cli.known_names import completed_devices
from neuralpower.devices.spec import KEYS, DeviceSpec, known_specs, read_spec, spec_of
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.stages import stage
from neuralpower.files.terminal import visible

if TYPE_CHECKING:
    from neuralpower.measure.meters import MeterStatus, MeterUnavailable

app = Typer()


class Shown(OptionGroup):
    """Options: what to show, and how."""

    panel = INPUT

    name: Annotated[
        str | None,
        Argument(
            help="Show the spec sheet of this device, or of this file, as --spec does.",
            autocompletion=completed_devices,
        ),
    ] = None
    specs: Annotated[bool, Option("--specs", help="List the spec sheets of known devices instead.")] = False
    spec: Annotated[
        str | None,
        Option(
            "--spec",
            metavar="<name|file>",
            help="Show one spec sheet with its sources instead.",
            autocompletion=completed_devices,
        ),
    ] = None
    output: Output


@app.command(epilog=examples("neuralpower devices --specs", "neuralpower devices --spec h100"))
@with_options
def devices(shown: Shown) -> None:
    """Print this machine's devices, meters and predictors, or spec sheets."""
    form = form_of(shown.output["form"], shown.output["out"], shown.output["as_json"])
    check_out(shown.output["out"], form)
    if shown.name is not None and shown.spec is not None:
        raise InputError(
            f"{shown.name} and --spec {shown.spec}: one sheet is shown at a time; give one of them"
        )
    spec = shown.spec if shown.name is None else shown.name
    if shown.specs and spec is not None:
        raise InputError(f"--specs lists all sheets, --spec {spec} shows one; give one of the two options")
    if shown.specs:
        answer = _specs([read_spec(path) for path in known_specs().values()])
    elif spec is not None:
        answer = _sheet(spec_of(spec))
    else:
        answer = _machine()
    give(answer, form, shown.output["out"])


def _machine() -> Answer:
    stage("looking for devices, meters and predictors")
    from neuralpower.devices.host import read_cpu
    from neuralpower.learn.files.predictor_files import known_predictors, readable
    from neuralpower.measure.meters import MeterUnavailable
    from neuralpower.measure.meters.nvml import list_gpus
    from neuralpower.report.number_format import binary

    cpu = read_cpu()
    found, refused = readable(known_predictors())
    try:
        gpus, missing = list_gpus(), None
    except MeterUnavailable as error:
        gpus, missing = [], error
    meters = _meters(["cpu", *(gpu.uuid for gpu in gpus), *_other_gpus()], missing)
    tried = ("device", "works", "reason", "text")
    shown = ("device", "dtypes", "phases")
    data = {
        "schema": 1,
        "devices": [{"name": "cpu", **cpu.to_json()}, *map(dataclasses.asdict, gpus)],
        "meters": [{"name": m.meter, **{key: getattr(m, key) for key in tried}} for m in meters],
        "predictors": [{"name": n, **{key: getattr(p, key) for key in shown}} for n, p in found.items()],
    }
    rows: list[tuple[str, str, str]] = []
    memory = f"{binary(cpu.memory_bytes)}, " if cpu.memory_bytes is not None else ""
    vectors = " ".join(flag for flag in cpu.flags if flag.startswith(("avx", "amx", "sve")))
    rows.append(("cpu", "", f"{cpu.name}, {cpu.cores} cores, {memory}{vectors}"))
    for gpu in gpus:
        memory = f"{binary(gpu.memory_bytes)}, " if gpu.memory_bytes is not None else ""
        rows.append(("gpu", "", f"{gpu.name}, {memory}driver {gpu.driver}, {gpu.uuid}"))
    if not gpus:
        rows.append(("gpu", "none found", _absence(missing)))
    for meter in meters:
        verdict = "works" if meter.works else f"no ({meter.reason})"
        name = f"{meter.meter} of {meter.device}" if meter.device else meter.meter
        rows.append(("meter", name, f"{verdict}: {meter.text}"))
    for name, p in found.items():
        several = p.device.count(",") + 1
        trained_on = p.device if several == 1 else f"{several} devices"
        rows.append(("predictor", name, ", ".join((trained_on, *p.dtypes, *p.phases))))
    rows += [("predictor", "no", str(unreadable)) for unreadable in refused]
    if not found:
        rows.append(("predictor", "none", "run collect-data and train-predictor"))
    return Answer(
        title="this machine",
        table=lambda: _grid(["what", "name", "about"], rows, left=3),
        json=lambda: data,
        rows=lambda: [("what", "name", "about"), *rows],
    )


def _absence(error: MeterUnavailable | None) -> str:
    """Why there is no GPU, in a few words."""
    if error is None:
        return "the NVIDIA driver lists no GPU"
    return "no NVIDIA driver" if error.reason == "no_driver" else str(error)


def _other_gpus() -> list[str]:
    """Devices besides CPUs and GPUs that NVML lists, where there is a meter that sees them."""
    from neuralpower.measure.meters import absence, known_meters

    sees = {name: getattr(meter, "sees", ()) for name, meter in known_meters().items()}
    found = (f"{sort}:0" for name, sorts in sees.items() if not absence(name) for sort in sorts)
    return [*dict.fromkeys(device for device in found if device != "cpu:0")]


def _meters(devices: list[str], missing: MeterUnavailable | None) -> list[MeterStatus]:
    """The status of each meter on each device; one line for NVML if it lists no GPU."""
    from neuralpower.measure.meters import MeterStatus, absence, known_meters, meter_status, plugged

    names = known_meters()
    tried = [meter_status(name, device) for device in devices for name in names]
    if missing is not None:
        tried.append(MeterStatus("nvml", "cuda", missing.reason, str(missing)))
    found = [status for status in tried if status is not None]
    seen = {status.meter for status in found}
    for name in names:
        if name not in seen:
            why = absence(name) or f"it sees none of {', '.join(devices)}"
            found.append(MeterStatus(name, "", "no_meter", why))
    return [*found, *(MeterStatus(name, "", "plugin", why) for name, why in plugged().items())]


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: int, spared: Sequence[str] = ()) -> str:
    from neuralpower.report.grid import grid

    return grid(header, rows, left, spared)


def _specs(specs: list[DeviceSpec]) -> Answer:
    from neuralpower.report.number_format import binary

    units = {
        **{"peak_flops_float32": 1e12, "peak_flops_bfloat16": 1e12, "memory_bytes_per_s": 1e9},
        **{"cores": 1, "limit_w": 1},
    }
    rows = []
    for sheet in specs:
        figures = [(sheet.get(key), unit) for key, unit in units.items()]
        cells = ["-" if value is None else f"{value / unit:.4g}" for value, unit in figures]
        rows.append([sheet.slug, sheet.device_class, binary(sheet.get("memory_bytes")), *cells])
    header = ["device", "class", "memory", "fp32 TFLOP/s", "bf16 TFLOP/s", "GB/s", "cores", "W"]
    keys = ("memory_bytes", *units)
    raw = [[s.slug, s.device_class, *(s.get(key) for key in keys)] for s in specs]
    return Answer(
        title=f"{len(specs)} devices",
        table=lambda: _grid(header, rows, left=2, spared=("class", "cores", "W")),
        json=lambda: {"schema": 1, "specs": {spec.slug: spec.to_json() for spec in specs}},
        rows=lambda: [["device", "class", *keys], *raw],
        shown=lambda: [header, *rows],
    )


def _sheet(spec: DeviceSpec) -> Answer:
    from neuralpower.report.number_format import binary

    parts = (spec.name, spec.device_class, spec.vendor, spec.year)
    lead = [visible(", ".join(str(part) for part in parts if part is not None))]
    if spec.aliases:
        lead.append(visible(f"reported as {', '.join(spec.aliases)}"))
    rows = [
        [key, binary(v.value) if KEYS[key].unit == "B" else f"{v.value:.12g} {KEYS[key].unit}", v.source]
        for key, v in spec.values.items()
    ]
    return Answer(
        title=spec.name,
        table=lambda: "\n".join([*lead, "", _grid(["value", "", "source"], rows, left=3)]),
        json=lambda: json_text(spec.to_json(), indent=2),
        rows=lambda: [["key", "value", "source"], *([k, v.value, v.source] for k, v in spec.values.items())],
        shown=lambda: [["value", "", "source"], *rows],
        lead=lambda: lead,
    )
