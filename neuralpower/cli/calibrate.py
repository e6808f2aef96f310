"""`neuralpower calibrate`: a predictor of another machine, adapted to this one by a few dozen measured layers."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from neuralpower.cli.output import say

app = typer.Typer()
DOUBTFUL = 0.4  # mean error of single layers: on a quiet machine of the predictor's kind it is half of that
USELESS = 3.0  # the same: four times too high or too low, whatever the factors


@app.command()
def calibrate(
    source: str = typer.Option(
        ..., "--from", help="Name or file of a predictor of the same class of device."
    ),
    samples: int = typer.Option(50, help="Layers to measure here."),
    seed: int = typer.Option(0, help="Of the choice of layers."),
    out: Path | None = typer.Option(
        None, help="The predictor file; models/THIS-MACHINE-calibrated.json by default."
    ),
) -> None:
    """Adapt a predictor to this machine within two minutes, and say what that gained."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.errors import DeviceError
    from neuralpower.learn import calibrate as calibration
    from neuralpower.learn.codec import check_places
    from neuralpower.learn.predictor_lookup import load
    from neuralpower.measure.cpu.timer import prepare_process
    from neuralpower.report.cards import write_predictor

    given = load(source)
    calibration.check(given, samples)
    cpu = read_cpu()
    target = out or Path("models") / f"{cpu.slug}-calibrated.json"
    check_places(target)
    prepare_process(cpu.cores)
    layers = calibration.calibration_layers(given, samples, seed)
    measured = calibration.measure_layers(layers, seed, show=lambda text: print(text, file=sys.stderr))
    result = calibration.calibrate(given, *measured, cpu)
    if result.after > USELESS:
        raise DeviceError(
            f"layers measured here lie {result.after:.0%} off in the mean, whatever factors they get: if something else runs on "
            "this machine, end it and calibrate again, or collect-data here; nothing was written"
        )
    write_predictor(result.predictor, target)
    gain = f"{result.after:.1%} after (of layers held out)"
    say(
        f"{result.rows} layers: geometric mean error {result.before:.1%} before, "
        f"{gain if result.gained else 'and factors made it no better, so they were left out'}\npredictor: {target}"
    )
    if result.after > DOUBTFUL:
        print(
            "layers lie far apart: if something else runs on this machine, end it and calibrate again",
            file=sys.stderr,
        )
