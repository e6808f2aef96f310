"""`neuralpower devices`: what can be measured here, known predictors, and the spec sheets of devices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from typer import Option, Typer

from neuralpower.cli.output import say
from neuralpower.devices.spec import KEYS, DeviceSpec, known_specs, read_spec, spec_of
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible

if TYPE_CHECKING:
    from neuralpower.measure.meters import MeterStatus, MeterUnavailable

app = Typer()


@app.command()
def devices(
    as_json: bool = Option(False, "--json", help="Print as JSON."),
    specs: bool = Option(False, "--specs", help="List the spec sheets of known devices instead."),
    spec: str | None = Option(
        None, "--spec", metavar="NAME|FILE", help="Show one spec sheet with its sources instead."
    ),
) -> None:
    """Print this machine and what it can do, or spec sheets."""
    if specs and spec is not None:
        raise InputError(f"--specs lists all sheets, --spec {spec} shows one; give one of the two options")
    if specs:
        _list_specs([read_spec(path) for path in known_specs().values()], as_json)
    elif spec is not None:
        _show_spec(spec_of(spec), as_json)
    else:
        _show_machine(as_json)


def _show_machine(as_json: bool) -> None:
    from neuralpower.devices.host import read_cpu
    from neuralpower.learn.predictor_files import known_predictors, readable
    from neuralpower.measure.meters import MeterUnavailable
    from neuralpower.measure.meters.nvml import list_gpus

    cpu = read_cpu()
    found, refused = readable(known_predictors())
    try:
        gpus, missing = list_gpus(), None
    except MeterUnavailable as error:
        gpus, missing = [], error
    meters = _meters(["cpu", *(gpu.uuid for gpu in gpus)], missing)
    if as_json:
        tried = ("device", "works", "reason", "text")
        shown = ("device", "dtypes", "phases")
        data = {
            "schema": 1,
            "devices": [{"name": "cpu", **cpu.to_json()}, *map(dataclasses.asdict, gpus)],
            "meters": [{"name": m.meter, **{key: getattr(m, key) for key in tried}} for m in meters],
            "predictors": [{"name": n, **{key: getattr(p, key) for key in shown}} for n, p in found.items()],
        }
        say(json_text(data))
        return

    from neuralpower.report.number_format import binary

    vectors = " ".join(flag for flag in cpu.flags if flag.startswith(("avx", "amx", "sve")))
    memory = f"{binary(cpu.memory_bytes)}, " if cpu.memory_bytes is not None else ""
    say(f"cpu        {cpu.name}, {cpu.cores} cores, {memory}{vectors}")
    for gpu in gpus:
        memory = f"{binary(gpu.memory_bytes)}, " if gpu.memory_bytes is not None else ""
        say(visible(f"gpu        {gpu.name}, {memory}driver {gpu.driver}, {gpu.uuid}"))
    if not gpus:
        say(visible(f"gpu        none: {missing or 'the NVIDIA driver lists no GPU'}"))
    for meter in meters:
        verdict = "works" if meter.works else f"no ({meter.reason})"
        say(visible(f"meter      {meter.meter} of {meter.device}: {verdict}: {meter.text}"))
    for name, p in found.items():
        say(visible(f"predictor  {name}: {', '.join((p.device, *p.dtypes, *p.phases))}"))
    for unreadable in refused:
        say(visible(f"predictor  no: {unreadable}"))
    if not found:
        say("predictor  none: run collect-data and train-predictor")


def _meters(devices: list[str], missing: MeterUnavailable | None) -> list[MeterStatus]:
    """The status of each meter on each device; one line for NVML where it lists no GPU to try it on."""
    from neuralpower.measure.meters import METERS, MeterStatus, meter_status

    tried = [meter_status(name, device) for device in devices for name in METERS]
    if missing is not None:
        tried.append(MeterStatus("nvml", "cuda", missing.reason, str(missing)))
    return [status for status in tried if status is not None]


def _list_specs(specs: list[DeviceSpec], as_json: bool) -> None:
    from neuralpower.report.number_format import binary
    from neuralpower.report.tables import grid

    if as_json:
        say(json_text({"schema": 1, "specs": {spec.slug: spec.to_json() for spec in specs}}))
        return
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
    say(grid(header, rows, left=2))


def _show_spec(spec: DeviceSpec, as_json: bool) -> None:
    from neuralpower.report.number_format import binary
    from neuralpower.report.tables import grid

    if as_json:
        say(json_text(spec.to_json(), indent=2))
        return
    parts = (spec.name, spec.device_class, spec.vendor, spec.year)
    say(visible(", ".join(str(part) for part in parts if part is not None)))
    if spec.aliases:
        say(visible(f"reported as {', '.join(spec.aliases)}"))
    rows = [
        [key, binary(v.value) if KEYS[key].unit == "B" else f"{v.value:.12g} {KEYS[key].unit}", v.source]
        for key, v in spec.values.items()
    ]
    say()
    say(grid(["value", "", "source"], rows, left=3))
