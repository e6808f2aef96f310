"""Five networks in neuralpower and every other installed profiler: `python -m benchmarks.profilers`.

Prints a Markdown table of multiply-adds (10^6) of one forward pass, as each tool counts them; "-" where it
fails, and no column for a tool that is not installed: pip install torchinfo fvcore calflops deepspeed ptflops
torchprofile.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neuralpower.networks.sources import InputRequest, Inputs, resolve
from neuralpower.profiling import profile
from neuralpower.profiling.conventions import flop_counter_total

NETWORKS = (
    ("zoo:resnet50", None),
    ("zoo:mobilenet_v2", None),
    ("transformers:BertModel", 128),
    ("transformers:GPT2Model", 128),
    ("transformers:ViTModel", None),
)
Counter = Callable[[nn.Module, Inputs], float]  # multiply-adds


def neuralpower_macs(model: nn.Module, inputs: Inputs) -> float:
    """This one."""
    found = profile(model, inputs.args, inputs.kwargs, runtime=False, flop_unit="mac", convention="matmul")
    assert found.total.macs is not None
    return float(found.total.macs)


def flop_counter_macs(model: nn.Module, inputs: Inputs) -> float:
    """torch.utils.flop_counter, on the CPU as a user would run it."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs.args, **inputs.kwargs)
    return float(counter.get_total_flops()) / 2


def flop_counter_on_meta_macs(model: nn.Module, inputs: Inputs) -> float:
    """The same on meta tensors, where attention is two products."""
    return flop_counter_total(model, inputs.args, inputs.kwargs) / 2


def thop_macs(model: nn.Module, inputs: Inputs) -> float:
    """Hooks on leaf modules."""
    macs, _ = importlib.import_module("thop").profile(model, (_only(inputs),), verbose=False)
    return float(macs)


def torchinfo_macs(model: nn.Module, inputs: Inputs) -> float:
    """Parameters times positions."""
    found = importlib.import_module("torchinfo").summary(model, input_data=_only(inputs), verbose=0)
    return float(found.total_mult_adds)


def fvcore_macs(model: nn.Module, inputs: Inputs) -> float:
    """Operators of a jit trace."""
    analysis = importlib.import_module("fvcore.nn").FlopCountAnalysis(model, _only(inputs))
    return float(analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).total())


def calflops_macs(model: nn.Module, inputs: Inputs) -> float:
    """Patched functions."""
    calculate = importlib.import_module("calflops").calculate_flops
    options = {"print_results": False, "print_detailed": False, "output_as_string": False}
    _, macs, _ = calculate(model, args=[_only(inputs)], **options)
    return float(macs)


def deepspeed_macs(model: nn.Module, inputs: Inputs) -> float:
    """Patched functions."""
    find = importlib.import_module("deepspeed.profiling.flops_profiler").get_model_profile
    _, macs, _ = find(model, args=[_only(inputs)], print_profile=False, as_string=False, warm_up=0)
    return float(macs)


def ptflops_macs(model: nn.Module, inputs: Inputs) -> float:
    """Patched functions and leaf modules."""
    find = importlib.import_module("ptflops").get_model_complexity_info
    options = {"print_per_layer_stat": False, "as_strings": False, "backend": "pytorch"}
    macs, _ = find(model, (1,), input_constructor=lambda _: _named(model, inputs), **options)
    return float(macs)


def torchprofile_macs(model: nn.Module, inputs: Inputs) -> float:
    """Operators of a jit trace."""
    return float(importlib.import_module("torchprofile").profile_macs(model, (_only(inputs),)))


TOOLS: dict[str, tuple[str, Counter]] = {
    "neuralpower": ("neuralpower", neuralpower_macs),
    "FlopCounterMode, CPU": ("torch", flop_counter_macs),
    "FlopCounterMode, meta": ("torch", flop_counter_on_meta_macs),
    "thop": ("thop", thop_macs),
    "torchinfo": ("torchinfo", torchinfo_macs),
    "fvcore": ("fvcore.nn", fvcore_macs),
    "calflops": ("calflops", calflops_macs),
    "deepspeed": ("deepspeed.profiling.flops_profiler", deepspeed_macs),
    "ptflops": ("ptflops", ptflops_macs),
    "torchprofile": ("torchprofile", torchprofile_macs),
}


def _only(inputs: Inputs) -> Any:
    """The one input tensor, whether it has a name or not."""
    return (*inputs.args, *inputs.kwargs.values())[0]


def _named(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The inputs as keywords."""
    names = list(inspect.signature(model.forward).parameters)
    return {**dict(zip(names, inputs.args, strict=False)), **inputs.kwargs}


def installed(module: str) -> bool:
    """Whether a tool can be imported."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    tools = {name: counter for name, (module, counter) in TOOLS.items() if installed(module)}
    print("| network | " + " | ".join(tools) + " |")
    print("| --- |" + " ---: |" * len(tools))
    for name, seq_len in NETWORKS:
        source = resolve(name)
        model = source.build("cpu")
        inputs = source.inputs(model, InputRequest(seq_len=seq_len))
        cells = []
        for counter in tools.values():
            quiet = io.StringIO()  # some print even if told not to
            try:
                with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                    cells.append(f"{counter(copy.deepcopy(model), inputs) / 1e6:,.0f}")
            except Exception as error:  # a tool that fails on a network is a result
                cells.append(f"- ({type(error).__name__})")
        print(f"| {name.partition(':')[2]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
