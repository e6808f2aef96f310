"""`neuralpower calibrate`: adapt another machine's predictor to this one by measuring a few layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from neuralpower.ask.panels import INPUT, MEASURING, OUTPUT
from neuralpower.cli.commands import TrustCode, examples
from neuralpower.cli.known_names import checked_source, completed_predictors
from neuralpower.cli.output import say, tell
from neuralpower.errors import DeviceError, InputError
from neuralpower.files.stages import stage

app = Typer()
DOUBTFUL = 0.4  # mean error of single layers; a quiet machine of the predictor's kind has half of it
USELESS = 3.0  # the same; predictions are four times too high or too low after scaling


@app.command(
    epilog=examples(
        "neuralpower calibrate --from amd-epyc-2c",
        "neuralpower calibrate --from amd-epyc-2c --samples 100 -o models/mine.json",
        "neuralpower calibrate --from rtx-4090 --networks timed.csv --map runtime_s=latency_ms/1000",
    )
)
def calibrate(
    source: Annotated[
        str,
        Option(
            "--from",
            help="Name or file of a predictor of the same class of device; with --networks a device.",
            callback=checked_source,
            autocompletion=completed_predictors,
            rich_help_panel=INPUT,
        ),
    ],
    samples: Annotated[int, Option(help="Layers to measure here.", rich_help_panel=MEASURING)] = 50,
    seed: Annotated[int, Option(help="Seed of the choice of layers.", rich_help_panel=MEASURING)] = 0,
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "-o",
            help="The predictor file; default: models/DEVICE-calibrated.json.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    networks: Annotated[
        Path | None,
        Option(
            help="CSV of whole networks timed on that GPU: model, batch, runtime_s; or timm's own columns.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    map_: Annotated[
        list[str] | None,
        Option(
            "--map",
            help="--networks: COLUMN=EXPRESSION of the file's columns, such as runtime_s=latency_ms/1000.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Measure some layers here, or read whole networks timed on a GPU, and scale the predictor to them."""
    if networks is not None:
        _by_networks(source, networks, map_ or [], out, trust_code=trust_code)
        return
    if map_:
        raise InputError(f"--map {map_[0]} renames columns of --networks FILE, which is not given; add it")
    _by_layers(source, samples, seed, out)


def _by_layers(source: str, samples: int, seed: int, out: Path | None) -> None:
    """Measure layers on this CPU, scale a predictor to them, and write it."""
    stage("importing torch")
    from neuralpower.devices.host import read_cpu
    from neuralpower.learn.files.predictor_json import check_places
    from neuralpower.learn.files.predictor_lookup import load
    from neuralpower.learn.networks import calibrate as calibration
    from neuralpower.measure.cpu.reached import reached
    from neuralpower.measure.cpu.timer import prepare_process
    from neuralpower.report.cards import write_predictor

    given = load(source)
    calibration.check(given, samples)
    cpu = read_cpu()
    target = out or Path("models") / f"{cpu.slug}-calibrated.json"
    check_places(target)
    prepare_process(cpu.cores)
    layers = calibration.calibration_layers(given, samples, seed)
    stage(f"measuring {len(layers)} layers")
    measured = calibration.measure_layers(layers, seed, show=tell)
    result = calibration.calibrate(given, *measured, cpu, reached(cpu))
    if result.after > USELESS:
        raise DeviceError(
            f"layers measured here are {result.after:.0%} off on average after scaling; nothing written. "
            "Fix: end other work on this machine and calibrate again, or run collect-data"
        )
    write_predictor(result.predictor, target)
    gain = "scaling did not reduce it, so times stay unscaled"
    if result.gained:
        gain = f"{result.after:.1%} after (held-out layers)"
    say(f"{result.rows} layers: geometric mean error {result.before:.1%} before, {gain}\npredictor: {target}")
    if result.after > DOUBTFUL:
        tell("Warning: single layers have large errors. Fix: end other work here and calibrate again.")


def _by_networks(source: str, file: Path, maps: list[str], out: Path | None, *, trust_code: bool) -> None:
    """Move a device's law by whole networks, and write it."""
    from neuralpower.data.columns import mapping
    from neuralpower.data.networks import reasons
    from neuralpower.devices.spec import spec_of

    columns = mapping([part for text in maps for part in text.split(",")])
    try:
        spec = spec_of(source)
    except InputError as error:
        raise InputError(
            f"{error}; with --networks give the name of a GPU with a spec sheet, or the file of one, which "
            "`neuralpower dataset init FOLDER --device-spec FILE` writes"
        ) from None
    target = out or Path("models") / f"{spec.slug}-calibrated.json"
    stage("importing torch")
    from neuralpower.learn.files.predictor_json import check_places
    from neuralpower.learn.networks.calibrate import calibrate_by_networks
    from neuralpower.report.cards import write_predictor

    check_places(target)
    stage("tracing the networks")
    found = calibrate_by_networks(spec, file, columns, trust_code=trust_code)
    for line in reasons(found.rejected):
        tell(line)
    taught = found.taught
    write_predictor(found.predictor, target)
    gain = f"{taught.after:.1%} after" if taught.gained else "no better after, so factors stay"
    say(f"{taught.networks} networks: mean error {taught.before:.1%} before, {gain} (held-out networks)")
    for line in found.moved:
        say(f"  {line}")
    say(f"predictor: {target}")
