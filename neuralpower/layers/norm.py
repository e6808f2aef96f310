"""Normalisation: over a batch, the last axes, groups of channels or an instance, or by root mean square."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.devices.hardware import WARP
from neuralpower.errors import Unmodelled
from neuralpower.late import F, Tensor, torch
from neuralpower.layers import (
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    KindLaw,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.elementwise import pass_of
from neuralpower.layers.tensors import contiguous_run
from neuralpower.layers.terms import aligned, evicted
from neuralpower.layers.training import Args, Named
from neuralpower.layers.traits import WIDTHS, Traits, by_code, only, steps
from neuralpower.layers.views import by_function, bytes_terms, seconds_terms

OPERATORS = {
    "aten.batch_norm": "batch",
    "aten.native_batch_norm": "batch",
    "aten._native_batch_norm_legit": "batch",
    "aten._native_batch_norm_legit_no_training": "batch",
    "aten.layer_norm": "layer",
    "aten.native_layer_norm": "layer",
    "aten.rms_norm": "rms",
    "aten._fused_rms_norm": "rms",
    "aten.group_norm": "group",
    "aten.native_group_norm": "group",
    "aten.instance_norm": "instance",
}
ROWS_IN_FLIGHT = 16  # a core: blocks of 128 threads to a row (aten/src/ATen/native/cuda/layer_norm_kernel.cu)
CACHE_SHARES = (0.125, 0.25, 0.5, 1.0)  # of the L2, that rows in flight take
OF_BATCH = "batch_training"  # by the statistics of the batch
SWEPT = (*["layer"] * 3, *["batch"] * 3, "group", "rms", "instance", OF_BATCH)
GROUPS = 32  # of the group norm that is built for timing, where the channels allow it


def _terms(layer: Norm, hardware: Hardware) -> Described:
    """Elements, rows, and both where the input does not lie row by row."""
    elements = layer.rows * layer.width * layer.spatial
    return {
        "elements": elements,
        "elements_strided": elements * layer.strided,
        "elements_bare": elements * (layer.spatial == 1),
        "maps": layer.rows * layer.width * (layer.spatial > 1),
        **bytes_terms(layer, hardware),
    }


def _alignment(layer: Norm) -> Described:
    """Alignment of a layer norm's rows to whole warps, which read four elements per thread."""
    by_rows = np.isin(layer.function, ("layer", "rms")) & ~np.asarray(layer.strided, dtype=bool)
    shares = aligned("row_elements", layer.width, 4 * WARP)
    return {name: share * by_rows for name, share in shares.items()}


def _pooled_terms(layer: Norm, hardware: Hardware) -> Described:
    """Rows are read for the statistics, and again to be scaled: from memory where many are in flight."""
    rows = np.asarray(layer.spatial) == 1
    seconds = layer.bytes().input / hardware.memory_bytes_per_s * rows
    in_flight = hardware.cores * ROWS_IN_FLIGHT * layer.width * layer.itemsize
    return seconds_terms(layer, hardware) | {
        f"rows_again_at_{share}_l2": seconds * evicted(in_flight, hardware.l2_bytes, share, 2 * share)
        for share in CACHE_SHARES
    }


def _traits(layer: Norm) -> Traits:
    """The function; rows that do not lie side by side; rows that a block of threads does not fill."""
    functions = {name: 1.0 * (np.asarray(layer.function) == name) for name in layer.words["function"]}
    strided = {"strided": np.asarray(layer.strided, dtype=float)}
    rows = only(np.isin(layer.function, ("layer", "rms")), steps("width", layer.width, WIDTHS))
    return Traits({}, functions | strided | rows)


def _features(layer: Norm, _: Hardware) -> Described:
    """How a row or a map fits the vectors."""
    return {
        "width_mod_16": layer.width % 16,
        "spatial_mod_16": layer.spatial % 16,
        "strided": layer.strided,
        "elements": np.log2(layer.rows * layer.width * layer.spatial),
    }


def _gradients(layer: Norm) -> Mapping[str, tuple[Layer, ...]]:
    """Grad y and x in, grad x out, then both again for the gradients of scale and shift: five tensors.

    A norm moves two of them, a product of two tensors three.
    """
    elements = layer.rows * layer.width * layer.spatial
    return {"weight": (replace(layer, phase="forward"),), "input": (pass_of(layer.dtype, "mul", elements),)}


def _operands_of(operator: str, output: Any, args: Args, kwargs: Named) -> Named:
    """Scale and shift are one, since a pass makes both gradients; the input or its shape comes first."""
    first = 1 if OPERATORS[operator] in ("batch", "instance") else 2
    named = [kwargs.get(name) for name in ("weight", "bias")]
    return {"input": args[0], "weight": (*args[first : first + 2], *named)}


@layer_kind("norm", *OPERATORS)
@dataclass(frozen=True, kw_only=True)
class Norm(Layer):
    """layer, rms: x [rows, width]; batch, group, instance: x [rows, width, spatial]."""

    function: str
    rows: int
    width: int
    spatial: int = 1
    strided: bool = False  # the input does not lie row by row

    dimensions = ("rows", "width", "spatial")
    sweep_share = 1.8
    recurring_share = 0.2
    words = {"function": (*dict.fromkeys(OPERATORS.values()), OF_BATCH)}
    group_names = words["function"]
    views = Views(
        cpu=View(group=by_function, terms=_terms, features=_features),
        kernels=View(alignment=_alignment),
        pooled=View(terms=_pooled_terms),
    )
    law = KindLaw(traits=_traits, on_cpu=by_code(12.0, {OF_BATCH: 24.0}))
    training = Training(
        gradients=_gradients,
        operands_of=_operands_of,
        # a batch norm takes the statistics of the batch
        turned=lambda layer: replace(layer, function=OF_BATCH) if layer.function == "batch" else layer,
        only=lambda layer: layer.function == OF_BATCH,
    )

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.layer_norm(x, normalized_shape, ...)`, `aten.batch_norm(x, ..., training, ...)` and so on."""
        x, function = args[0], OPERATORS[operator]
        if function in ("layer", "rms"):
            width = math.prod(map(int, args[1]))
            rows, spatial = x.numel() // max(width, 1), 1
        else:
            if x.dim() < 2:
                raise Unmodelled(f"{function} norm of a tensor with {x.dim()} axes")
            rows, width = x.shape[0], x.shape[1]
            spatial = x.numel() // max(rows * width, 1)
            training = args[5] if len(args) > 5 else kwargs.get("training", False)
            training = training and operator != "aten._native_batch_norm_legit_no_training"
            if function == "batch" and training:
                function = OF_BATCH
        run = contiguous_run(x, x.new_empty(x.shape))
        return cls(function=function, rows=rows, width=width, spatial=spatial, strided=run != 0)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Layer norms of transformers, batch norms of convolutional networks."""
        function = draw.choice(SWEPT)
        strided = draw.chance(0.08)
        if function in ("layer", "rms"):
            rows = draw.octaves(1, 16) if draw.chance(0.2) else draw.octaves(8, 16384)
            return cls(function=function, rows=rows, width=draw.size(8, 8192), strided=strided and rows > 1)
        if function == "batch" and draw.chance(0.4):  # of vectors, not of maps
            return cls(function=function, rows=draw.octaves(16, 8192), width=draw.size(8, 2048))
        return cls(
            function=function,
            rows=draw.choice((1, 1, 2, 4, 8, draw.octaves(1, 32))),
            width=draw.size(8, 2048),
            spatial=draw.octaves(2, 224) ** 2,
            strided=strided and function == "batch",
        )

    def build(self, device: torch.device) -> Call:
        scale, shift = self.tensor(self.width, device=device), self.tensor(self.width, device=device)
        x = self._input(device)
        if self.function == "rms":
            return Call(F.rms_norm, (x, (self.width,), scale), warm=(x,))
        if self.function == "layer":
            return Call(F.layer_norm, (x, (self.width,), scale, shift), warm=(x,))
        if self.function == "group":
            groups = next(g for g in range(min(GROUPS, self.width), 0, -1) if self.width % g == 0)
            return Call(F.group_norm, (x, groups, scale, shift), warm=(x,))
        if self.function == "instance":
            return Call(F.instance_norm, (x, None, None, scale, shift), warm=(x,))
        mean, spread = self.tensor(self.width, device=device), self.tensor(self.width, device=device)
        training = self.function == OF_BATCH
        return Call(F.batch_norm, (x, mean, spread.abs() + 0.5, scale, shift, training), warm=(x,))

    def _input(self, device: torch.device) -> Tensor:
        """Rows, or maps; strided ones are transposed rows, or images in the channels-last format.

        Only tensors of four axes have that format, for which batch norms have kernels of their own.
        """
        if self.function in ("layer", "rms"):
            if self.strided:
                return torch.as_tensor(self.tensor(self.width, self.rows, device=device).t())
            return torch.as_tensor(self.tensor(self.rows, self.width, device=device))
        if not self.strided:
            return torch.as_tensor(self.tensor(self.rows, self.width, self.spatial, device=device))
        height = next(side for side in range(math.isqrt(self.spatial), 0, -1) if self.spatial % side == 0)
        x = self.tensor(self.rows, height, self.spatial // height, self.width, device=device)
        return torch.movedim(x, -1, 1)

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.rows, self.width, self.spatial

    def flops(self) -> int:
        """5 per element: two for the statistics, subtract, scale, shift (as in the Roofline literature)."""
        return 5 * self.rows * self.width * self.spatial

    def bytes(self) -> Bytes:
        elements = self.rows * self.width * self.spatial
        return Bytes(self.itemsize * elements, 2 * self.itemsize * self.width, self.itemsize * elements)

    def parameters(self) -> int:
        return 2 * self.width
