"""`neuralpower devices`: what can be measured here, and which predictors there are."""

from __future__ import annotations

import json

import typer


def devices(as_json: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """Show this machine, its power meters, and the predictors that `predict` finds by name."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.predictor import known_predictors, load

    cpu = read_cpu()
    found = {name: load(path) for name, path in known_predictors().items()}
    if as_json:
        print(
            json.dumps(
                {
                    "schema": 1,
                    "devices": [{"name": "cpu", **cpu.to_json()}],
                    "meters": [],
                    "predictors": [
                        {"name": name, "device": p.device, "dtypes": p.dtypes, "phases": p.phases}
                        for name, p in found.items()
                    ],
                }
            )
        )
        return
    print(
        f"cpu        {cpu.name}, {cpu.cores} cores, {' '.join(f for f in cpu.flags if f.startswith(('avx', 'amx', 'sve')))}"
    )
    print("power      none: this version reads no power meter; runtime is measured")
    for name, predictor in found.items():
        print(f"predictor  {name}: {predictor.device}, {', '.join(predictor.dtypes)}, {', '.join(predictor.phases)}")
    if not found:
        print("predictor  none: run collect-data and train-predictor")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("devices")(devices)
