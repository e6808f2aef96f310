"""The options of the functions: their names and types, how they are checked, and what devices they name."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

import torch

from neuralpower.devices.cluster import Cluster, cluster_of, is_cluster
from neuralpower.devices.layout import Layout
from neuralpower.devices.memory_size import is_size
from neuralpower.errors import InputError, is_count, unknown
from neuralpower.networks.phases import Phase
from neuralpower.prediction.explore.fit_request import Request
from neuralpower.trace.casts import cast_dtype
from neuralpower.trace.recipe import TRAINING, Recipe


class PredictOptions(TypedDict, total=False):
    """Rare options of a prediction."""

    seq_len: int | None  # tokens of each sample
    input_shape: Sequence[int] | None  # of one sample
    recipe: Recipe  # of training: optimizer, accumulation, checkpointing
    run: str | None  # eager, graph, compile or engine
    engine: str | None  # that serves it, for run "engine": vllm, sglang or llama.cpp
    weights: str | None  # quantisation of weights: "int4:128", "fp8", "q4_k_m"
    autocast: str | None  # low precision that products are cast to: "bfloat16"
    lora: str | int | None  # training: rank of adapters, 16 or "16:q_proj,v_proj"
    layout: Layout  # over several devices
    devices: str | Cluster | None  # these devices, such as "8xh100-sxm", in place of a device
    nodes: int  # of these devices each
    plan: Mapping[str, Any] | None  # names of modules -> how tensor ranks share them, as torch's styles
    require_plan: bool  # whether a network without a plan is refused, instead of sharded by a rule
    min_coverage: float | None  # the least coverage, 0 to 1: below it, CoverageError


class SweepOptions(TypedDict, total=False):
    """The grid of a sweep, and the options of all its points."""

    batch_sizes: Sequence[int]  # samples; (1,) by default
    seq_lens: Sequence[int | None]  # tokens of each sample; None leaves them to the model
    dtypes: Sequence[str] | None  # of weights and inputs; None: a model's own, else float32
    phase: str | Phase | Sequence[Phase]  # of one name; they may differ in their tokens
    recipe: Recipe  # of training: optimizer, accumulation, checkpointing
    memory: str | float | None  # of the device, such as "24GB", or bytes; None: that of its spec sheet
    input_shape: Sequence[int] | None  # of one sample
    run: str | None  # eager, graph, compile or engine; None: the usual one of the phase
    weights: str | None  # quantisation of weights
    layouts: Sequence[Layout]  # over several devices, each a point of the grid
    devices: str | Cluster | None  # these devices
    nodes: int
    require_plan: bool  # whether a network without a plan is refused


FIELDS = [
    each.name for each in fields(Request) if each.name not in ("model", "published")
]  # fields of a request to `fit`
SIZES = ("batch_size", "dtype", "phase", *PredictOptions.__annotations__)  # options of `predict`

# what other tools call an option -> its name here
ALIASES = {
    **dict.fromkeys(("batch", "batchsize", "bs", "batch_sizes"), "batch_size"),
    **dict.fromkeys(("seq", "seqlen", "seq_length", "sequence_length", "length", "lengths"), "seq_len"),
    **dict.fromkeys(("input_size", "shape", "input_data"), "input_shape"),
    **dict.fromkeys(("precision", "torch_dtype", "data_type", "dtypes"), "dtype"),
    **dict.fromkeys(("quantization", "quantize", "quant", "weight_dtype"), "weights"),
    **dict.fromkeys(("gpu", "hardware", "accelerator", "target"), "device"),
    **dict.fromkeys(("mode", "backend"), "run"),
    **dict.fromkeys(("optimizer", "accumulation", "checkpointing", "master_weights"), "recipe"),
}
# names until 0.2 that also meant something else -> their names now; 0.3 will not know them
RENAMED = {"strict": "require_plan", "lengths": "seq_lens"}
PLURAL = {"batch_size": "batch_sizes", "seq_len": "seq_lens", "dtype": "dtypes"}  # of a sweep
OF_PHASES = {"context": "decode", "prompt": "prefill", "new_tokens": "generate"}  # fields of a phase


def renamed(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The options under their names of today, with a warning; raises InputError for a share called strict."""
    found = dict(given)
    for old, new in RENAMED.items():
        if old not in found or old in known or new not in known:
            continue
        if old == "strict" and not isinstance(found[old], bool):
            raise InputError(
                f"strict {found[old]!r:.40}: means two things; write min_coverage for the least coverage, or "
                "require_plan=True for a network that must have a plan"
            )
        warnings.warn(f"{old} is now {new}; the old name goes in 0.3", FutureWarning, stacklevel=5)
        found[new] = found.pop(old)
    return found


def check_options(of: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise InputError for an unknown name, with the most likely one."""
    for name in given:
        if name not in known:
            raise _unknown(of, name, known)


def _unknown(of: str, name: str, known: Collection[str]) -> InputError:
    meant = ALIASES.get(name.lower())
    meant = PLURAL.get(meant or name, meant) if "batch_sizes" in known else meant
    if meant in known:
        return InputError(f"unknown {of} {name!r}: did you mean {meant}?")
    if name in OF_PHASES and "phase" in known:
        phase = OF_PHASES[name]
        return InputError(f"unknown {of} {name!r}: write phase=neuralpower.Phase.{phase}({name}=...)")
    return unknown(of, name, known)


def cast_of(options: PredictOptions) -> torch.dtype | None:
    """The dtype of an autocast; None for no casts. Raises InputError."""
    text = options.get("autocast")
    return None if text is None else cast_dtype(str(text))


def phases_of(asked: Any) -> list[Phase]:
    """One phase, or several of a list; raises InputError for what names none."""
    several = asked if isinstance(asked, (list, tuple)) else [asked]
    for phase in several:
        if not isinstance(phase, (str, Phase)):
            raise InputError(
                f"phase {phase!r:.40}: must be a name, or a Phase; write 'decode', or leave it out"
            )
    return [phase if isinstance(phase, Phase) else Phase(phase) for phase in several]


def check_settings(batch_size: int | None, recipe: Any, layout: Any) -> None:
    """Raise InputError for an impossible batch size, recipe or layout."""
    if not isinstance(layout, Layout):
        raise InputError(f"layout {layout!r:.40}: must be a Layout, such as neuralpower.Layout(tensor=8)")
    if batch_size is not None and not is_count(batch_size):
        raise InputError(f"batch size {batch_size}: must be a whole number, 1 or more; choose 1")
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe {recipe!r:.40}: must be a Recipe, such as neuralpower.Recipe('adam')")


def cluster_in(options: Mapping[str, Any]) -> Cluster | None:
    """The cluster of the options `devices` and `nodes`; raises InputError."""
    devices, nodes = options.get("devices"), options.get("nodes")
    if devices is None:
        if nodes is not None:
            raise InputError(f"nodes {nodes}: devices says what a node has; give devices='8xh100-sxm'")
        return None
    if isinstance(devices, Cluster):
        return devices
    if not isinstance(devices, str):
        raise InputError(f"devices {devices!r:.40}: must be a text, such as '8xh100-sxm'")
    return cluster_of(devices, 1 if nodes is None else nodes)


def device_in(device: Any, options: Mapping[str, Any]) -> Any:
    """The device that is named, or that of the option `devices`; raises InputError where both name one."""
    cluster = cluster_in(options)
    if cluster is None:
        return device
    if device is not None:
        raise InputError(f"device {device!r:.40} and devices both name a device; leave device out")
    return cluster.spec.slug


def fitted_target(
    device: Any, memory: str | float | None, request: Mapping[str, Any]
) -> tuple[Any, str | float | None, dict[str, Any]]:
    """(device, memory, request) where the device may be a memory, 24GB, or several devices, 8xh100-sxm.

    Several devices without a layout get the usual one. Raises InputError for two that contradict.
    """
    request = dict(request)
    if is_size(device):
        if memory is not None:
            raise InputError(f"device {device!r} and memory {memory!r} both are a size; leave one out")
        return None, device, request
    if is_cluster(device):
        if request.get("devices") is not None:
            device_in(device, request)  # raises: both name devices
        device, request["devices"] = None, device
    cluster = cluster_in(request)
    if cluster is not None and request.get("layout") is None:
        request["layout"] = cluster.usual_layout(request.get("phase") == TRAINING)
    return device, memory, request
