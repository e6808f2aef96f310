"""`neuralpower calibrate`: adapt another machine's predictor to this one by measuring a few layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from neuralpower.cli.commands import examples
from neuralpower.cli.known_names import checked_predictor, completed_predictors
from neuralpower.cli.output import say, tell
from neuralpower.cli.panels import INPUT, MEASURING, OUTPUT
from neuralpower.errors import DeviceError
from neuralpower.files.stages import stage

app = Typer()
DOUBTFUL = 0.4  # mean error of single layers; a quiet machine of the predictor's kind has half of it
USELESS = 3.0  # the same; predictions are four times too high or too low after scaling


@app.command(
    epilog=examples(
        "neuralpower calibrate --from amd-epyc-2c",
        "neuralpower calibrate --from amd-epyc-2c --samples 100 -o models/mine.json",
    )
)
def calibrate(
    source: Annotated[
        str,
        Option(
            "--from",
            help="Name or file of a predictor of the same class of device.",
            callback=checked_predictor,
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
            help="The predictor file; default: models/THIS-MACHINE-calibrated.json.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Measure some layers here, scale the predictor to them, and write it."""
    stage("importing torch")
    from neuralpower.devices.host import read_cpu
    from neuralpower.learn import calibrate as calibration
    from neuralpower.learn.predictor_lookup import load
    from neuralpower.learn.predictor_writing import check_places
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
    result = calibration.calibrate(given, *measured, cpu)
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
