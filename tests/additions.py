"""What the additions of CONTRIBUTING.md do, as JSON: run by test_contributing.py in a package with them."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import neuralpower
from neuralpower.cli import main, parsing
from neuralpower.data.schema import check_hardware
from neuralpower.devices.spec import read_spec
from neuralpower.errors import NeuralPowerError
from neuralpower.layers import KINDS, Draw, columns_of
from neuralpower.layers.rows import from_row
from neuralpower.layers.views import peak_flops
from neuralpower.measure.meters import METERS, open_meter
from neuralpower.measure.rig import open_rig
from neuralpower.networks.sources import resolve
from neuralpower.networks.sources.base import check_model
from neuralpower.prediction import request


def printed(*arguments: str) -> Any:
    """What `neuralpower ARGUMENTS --json` prints."""
    sys.argv = ["neuralpower", *arguments, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    return json.loads(out.getvalue())


def predicted(model: str, device: str) -> Any:
    """The prediction by one predictor of several devices."""
    return printed("predict", model, "--predictor", f"nvidia-float32@{device}")


def refusal(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The text of a refusal; None if nothing is refused."""
    try:
        function(*arguments)
    except NeuralPowerError as error:
        return str(error)
    return None


def kind() -> dict[str, Any]:
    """A network of the new operator, and one layer of a sweep that is built."""
    Path("spectrum.py").write_text(
        "import torch\n"
        "class Spectrum(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.fft.rfft(x)\n"
        "def example_inputs(batch_size):\n"
        "    return torch.zeros(batch_size, 64, 1024)\n"
    )
    layer = KINDS["fourier"].sample(Draw(0))
    called = layer.build(torch.device("cpu"))()
    columns: Any = columns_of(KINDS["fourier"], [layer])
    return {
        "predicted": predicted("spectrum.py:Spectrum", "nvidia-l4"),
        "bytes": [int(columns.bytes().output[0]), called.nbytes],
    }


def dtype() -> dict[str, Any]:
    """An option, a sheet, a dataset's device, and the bytes of layers."""
    values = {"peak_flops_float6_e3m2fn": 3e14, "memory_bytes_per_s": 1e12, "cores": 8}
    Path("mine.json").write_text(json.dumps({"schema": 1, "name": "Mine", "class": "gpu", "values": values}))
    check_hardware({"peak_flops_per_s": {"float6_e3m2fn": 3e14}})
    row = {"dtype": "bfloat16", "rows": 1, "in_features": 7, "out_features": 3, "bias": False}
    product = from_row(KINDS["linear"], {**row, "weights_dtype": "float6_e3m2fn"})
    columns: Any = columns_of(KINDS["linear"], [product])
    whole = from_row(KINDS["softmax"], {"dtype": "float6_e3m2fn", "rows": 1, "width": 7})
    return {
        "option": parsing.dtype("fp6"),
        "peak": peak_flops(whole, read_spec("mine.json").hardware()),
        "weights": columns.bytes().weights.tolist(),
        "input": int(whole.bytes().input),
    }


def option() -> dict[str, Any]:
    """The recipe that a command and a function train by, and where the option is listed."""
    made = []
    original = request.request_of

    def noted(*given: Any, **more: Any) -> Any:
        made.append(original(*given, **more))
        return made[-1]

    model = "transformers:gpt2?n_layer=1&n_embd=64&n_head=2"
    how: Any = {"phase": "training", "device": "nvidia-l4", "predictor": "nvidia-float32"}
    with mock.patch("neuralpower.api.loaded.request_of", noted):
        flags = ("--phase", "training", "--checkpointing", "--selective", "--device", "nvidia-l4")
        printed("fit", model, *flags, "--seq-len", "16")
        neuralpower.fit(model, **how, **{"seq_len": 16, "checkpointing": True, "selective": True})
    command, python = (str(one.recipe).partition(", ")[2] for one in made)
    sys.argv = ["neuralpower", "fit", "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    return {
        "help": "--selective" in out.getvalue(),
        "docstring": "`selective`: Recompute only" in str(neuralpower.fit.__doc__),
        "command": command,
        "python": python,
        "refused": refusal(lambda: neuralpower.fit(model, **how, **{"selective": True})),
    }


def phase() -> dict[str, Any]:
    """A prompt all of whose positions get logits, and one whose last does."""
    model = "transformers:GPT2LMHeadModel?n_layer=1&n_embd=64&n_head=2"
    sizes = ("--prompt", "16", "-b", "2", "--predictor", "nvidia-float32@nvidia-l4")
    score, prefill = (printed("predict", model, "--phase", name, *sizes) for name in ("score", "prefill"))
    loaded = neuralpower.load("nvidia-float32@nvidia-l4")
    asked = neuralpower.Phase("score", prompt=16)
    return {
        "name": score["phase"],
        "python": loaded.predict(model, phase=asked).phase,
        "flops": score["flops"],
        "prefill flops": prefill["flops"],
        "refused": refusal(neuralpower.Phase("score", context=16).check),
    }


def device() -> dict[str, Any]:
    """The list of sheets, and a prediction by the sheet's name."""
    return {
        "listed": list(printed("devices", "--specs")["specs"]),
        "predicted": predicted("zoo:resnet18", "nvidia-rtx-2080-ti"),
    }


def meter() -> dict[str, Any]:
    """The list of meters, and a reading of a counter of the test's own."""
    counters = Path("hwmon/hwmon0")
    counters.mkdir(parents=True)
    (counters / "energy1_input").write_text("2500000")
    found: Any = METERS["hwmon"]
    with mock.patch.object(found, "for_device", lambda device: found("cpu", Path("hwmon"))):
        (reading,) = open_meter("hwmon", "cpu").read()
    return {
        "listed": [m["name"] for m in printed("devices")["meters"]],
        "read": [reading.domain, reading.energy_j],
    }


def platform() -> dict[str, Any]:
    """A prediction for a device of the maker, and the rig, without such a device and with one."""
    with mock.patch("torch.backends.mps.is_available", lambda: False):
        refused = refusal(open_rig, "mps", "none", 1)
    with mock.patch("torch.backends.mps.is_available", lambda: True):
        opened = open_rig("mps", "none", 1).hardware()
    return {"predicted": predicted("zoo:resnet18", "apple-m1-max"), "refused": refused, "opened": opened}


def source() -> dict[str, Any]:
    """A prediction, and what messages and the rule for files of data say."""
    return {
        "predicted": predicted("mlp:784x256x10", "nvidia-l4"),
        "refused": refusal(resolve, "mlp:784"),
        "written": refusal(resolve, "nothing"),
        "of data": refusal(check_model, "mlp:784x10"),
    }


def column() -> dict[str, str]:
    """A prediction in forms that show columns."""
    forms = {}
    for form in ("table", "md", "csv"):
        command = ["neuralpower", "predict", "zoo:deep_mnist", "--device", "rtx-2080-ti", "-v"]
        sys.argv = [*command, "--format", form]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main()
        forms[form] = out.getvalue()
    return forms


if __name__ == "__main__":
    found = {
        one.__name__: one() for one in (kind, dtype, option, phase, device, meter, platform, source, column)
    }
    print(json.dumps({"package": neuralpower.__file__, **found}))
