"""`neuralpower calibrate`: predictor of another machine, a few measured layers -> predictor of this one."""

from __future__ import annotations

from pathlib import Path

from typer import Option, Typer

from neuralpower.cli.output import say, tell
from neuralpower.errors import DeviceError

app = Typer()
DOUBTFUL = 0.4  # mean error of single layers: on a quiet machine of the predictor's kind it is half of that
USELESS = 3.0  # the same: four times too high or too low, whatever the factors


@app.command()
def calibrate(
    source: str = Option(..., "--from", help="Name or file of a predictor of the same class of device."),
    samples: int = Option(50, help="Layers to measure here."),
    seed: int = Option(0, help="Of the choice of layers."),
    out: Path | None = Option(
        None, help="The predictor file; models/THIS-MACHINE-calibrated.json by default."
    ),
) -> None:
    """Measure some layers here, scale the predictor by them, and write it."""
    from neuralpower.devices.host import read_cpu
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
    measured = calibration.measure_layers(layers, seed, show=tell)
    result = calibration.calibrate(given, *measured, cpu)
    if result.after > USELESS:
        raise DeviceError(
            f"layers measured here lie {result.after:.0%} off in the mean, whatever factors they get: "
            "if something else runs on this machine, end it and calibrate again, or collect-data here; "
            "nothing was written"
        )
    write_predictor(result.predictor, target)
    gain = "and factors made it no better, so they were left out"
    if result.gained:
        gain = f"{result.after:.1%} after (of layers held out)"
    say(f"{result.rows} layers: geometric mean error {result.before:.1%} before, {gain}\npredictor: {target}")
    if result.after > DOUBTFUL:
        tell("layers lie far apart: if something else runs on this machine, end it and calibrate again")
