"""One product's weights in a quantised format: what lies in memory, to the byte, and how it is multiplied."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from neuralpower.dtypes import DTYPES, FEWEST_NETWORK_BITS, GGUF, peaks_of
from neuralpower.errors import InputError
from neuralpower.quantisation.weights import Matrices

HALVES = ("bfloat16", "float16")  # what products of plain weights run in
ROW, TENSOR = -1, -2  # groups: all inputs of an output share a scale; all weights of a matrix do
LABELS = {"float8_e4m3fn": "fp8", "float4_e2m1fn": "fp4", "uint4": "int4", "uint3": "int3", "uint2": "int2"}


@dataclass(frozen=True, kw_only=True)
class Format:
    """How the weights [outputs, inputs] of a product are stored, and in which type it multiplies."""

    dtype: str  # of a weight, one of neuralpower.dtypes
    group: int = 0  # inputs of an output that share a scale; ROW, TENSOR; 0: as the type itself says
    rows: int = 1  # outputs whose groups share it, too: 128 in blocks of 128 x 128
    scale_bits: float = 0  # of a scale, with its zero point; for group 0 as the type says
    input_bits: int = 0  # besides these for each input: an index of 32 names its group
    matrix_bits: int = 0  # for each matrix
    ragged: bool = False  # whether a last group may be shorter than the others
    # Type that inputs are rounded to, in which the product then multiplies; "": it multiplies in the inputs'
    # own type, and weights are widened on their way ("weight-only").
    activations: str = ""
    activations_group: int = 0  # inputs of a row that share a scale
    dynamic: bool = False  # whether scales of the inputs are found while the product runs

    def bytes(self, matrices: Matrices) -> int:
        """B of all that a checkpoint stores for these matrices, and a device holds of them."""
        count, outputs, inputs = matrices
        entry = DTYPES[self.dtype]
        bits, scale_bits = entry.bits * outputs * inputs, self.scale_bits
        group = {ROW: inputs, TENSOR: inputs}.get(self.group, self.group)
        rows = outputs if self.group == TENSOR else self.rows
        if group == 0:
            group, scale_bits = entry.group, entry.scale_bits
        scales = math.ceil(outputs / rows) * math.ceil(inputs / group) * scale_bits if group else 0.0
        each = math.ceil(bits / 8) + math.ceil(scales / 8)
        return count * (each + math.ceil((self.input_bits * inputs + self.matrix_bits) / 8))

    def bits(self, matrices: Matrices) -> float:
        """Bits for each weight of these matrices, including scales, zero points and indices."""
        return 8 * self.bytes(matrices) / math.prod(matrices)

    @property
    def quantises(self) -> bool:
        """Whether weights are shorter than any that a network can be built in."""
        return DTYPES[self.dtype].bits < FEWEST_NETWORK_BITS

    @property
    def inputs_of_a_scale(self) -> int:
        """The numbers that have to divide a product's inputs; 1 where any number of them will do."""
        group = self.group or DTYPES[self.dtype].group
        return 1 if self.ragged or group < 1 else group

    def check(self, where: str, matrices: Matrices) -> None:
        """Raise InputError where a group does not divide a product's inputs; `where` names its layer."""
        size, inputs = self.inputs_of_a_scale, matrices[2]
        if inputs % size:
            other = math.gcd(inputs, 128)
            fitting = f"choose one that does, such as {other}" if other > 1 else "choose another format"
            said = f"groups of {size} weights ({self.label}) do not divide its {inputs} inputs"
            raise InputError(f"{where}: {said}; {fitting}")

    def on(self, peaks: Mapping[str, float]) -> Format:
        """The same where a device has arithmetic for it, by its peaks; else with weights alone quantised.

        A few units for it, slower than those for 16 bits, count as none: no engine takes them.
        """
        peak = peaks_of(peaks, self.activations) if self.activations else math.inf
        if peak is not None and peak >= max((peaks.get(name, 0.0) for name in HALVES), default=0.0):
            return self
        return replace(self, activations="", activations_group=0, dynamic=False)

    @property
    def label(self) -> str:
        return self.dtype.upper() if self.dtype in GGUF else LABELS.get(self.dtype, self.dtype)

    @property
    def words(self) -> str:
        """The type and who shares a scale: "int4, groups of 128"."""
        if self.dtype in GGUF:
            return self.label
        group = self.group or DTYPES[self.dtype].group
        shared = f"groups of {group}" if group > 0 else ""
        if self.rows > 1:
            shared = f"blocks of {self.rows} x {group}"
        elif self.group < 0:
            shared = "a scale per output" if self.group == ROW else "a scale per matrix"
        return ", ".join(filter(None, (self.label, shared)))

    @property
    def multiplies(self) -> str:
        """The type that its inputs are rounded to, as text; "" where they are not."""
        return f"activations {LABELS.get(self.activations, self.activations)}" if self.activations else ""
