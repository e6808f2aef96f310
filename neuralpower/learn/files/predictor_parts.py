"""The format of a predictor's file: a Struct for each object of the JSON, whose types are its rules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from neuralpower.data.schema import COPIED, FRESH, NUMBERS
from neuralpower.devices.spec import FASTEST_FLOPS, HIGHEST_W, KEYS
from neuralpower.layers import Layer
from neuralpower.layers.rows import LARGEST
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.files.file_struct import (
    MOST_BITS,
    MOST_LOG,
    MOST_NUMBER,
    Deviation,
    Exponent,
    NotNegative,
    Octaves,
    Part,
    Positive,
)
from neuralpower.learn.fitting.slopes import Alignment
from neuralpower.learn.networks.pace import NetworkSpeed
from neuralpower.learn.regressor import Spread
from neuralpower.learn.unmeasured.prior import Doubt

SCHEMA = 5
RUNTIME, POWER = "runtime_s", "power_w"
KEY = ("kind", "dtype", "phase", "group")
UNITS = {"runtime": "s", "power": "W", "flops": "FLOP (1 multiply-add = 2)", "bytes": "B"}

# Leaves are whole steps of a size that each tree has for itself. Rounding moves log time by 4e-5 in 400
# trees.
LEAF_BITS, LEAST_EXPONENT = 16, -80
MOST_NODES, MOST_MEASURED = 2**20, 2**24  # of one regressor: some 16 and 500 times the largest shipped one

MOST_FACTOR = 10.0  # logarithm of a law's factor: the largest trained one is 3

Number = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Size = Annotated[int, Meta(ge=1, le=LARGEST)]
Name = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+\Z")]  # printable, in one line
Watts = Annotated[float, Meta(gt=0, le=HIGHEST_W)]
Peak = Annotated[float, Meta(ge=1, le=FASTEST_FLOPS)]


class HardwarePart(Part, frozen=True):
    """`Hardware`; a bandwidth of 1 is one that is not known."""

    cores: Annotated[int, Meta(ge=1, le=int(KEYS["cores"].high))]
    l2_bytes: Size
    llc_bytes: Size
    accelerator: bool
    peak_flops_per_s: dict[str, Peak]
    memory_bytes_per_s: Annotated[float, Meta(ge=1, le=KEYS["memory_bytes_per_s"].high)]
    base_clock: Annotated[float, Meta(ge=1e-4, le=1)]
    limit_w: Watts | None = None
    gpu_limit_w: Watts | None = None
    idle_w: Watts | None = None
    deep_idle_w: Watts | None = None
    year: Annotated[int, Meta(ge=1970, le=2100)] | None = None
    lanes_per_scheduler: Annotated[float, Meta(ge=1, le=1024)] | None = None
    clock_hz: Annotated[float, Meta(ge=KEYS["clock_hz"].low, le=KEYS["clock_hz"].high)] | None = None
    link_bytes_per_s: Annotated[float, Meta(gt=0, le=KEYS["link_bytes_per_s"].high)] | None = None
    pcie_bytes_per_s: Annotated[float, Meta(gt=0, le=KEYS["pcie_bytes_per_s"].high)] | None = None
    network_bytes_per_s: Annotated[float, Meta(gt=0, le=KEYS["network_bytes_per_s"].high)] | None = None
    fresh_s_per_byte: Annotated[float, Meta(ge=0, le=NUMBERS[FRESH].high)] | None = None
    copied_bytes_per_s: Annotated[float, Meta(gt=0, le=NUMBERS[COPIED].high)] | None = None
    product_flops_per_s: dict[str, Peak] = {}
    platform: str | None = None  # None: as `accelerator` says, in files of older versions


class CostPart(Part, frozen=True):
    """`Cost` of calls of one kind, phase and function."""

    kind: str
    phase: str
    function: str
    call_s: NotNegative
    launch_s: NotNegative
    rows: Size


class DispatchPart(Part, frozen=True):
    """`Dispatch`."""

    other_s: NotNegative
    deviation: Deviation
    factor: Positive
    costs: list[CostPart]
    walk_s: NotNegative = 0.0


class TermPart(Part, frozen=True, kw_only=True):
    """`Term` with its weight: a product of dimensions' powers, or a special one by name."""

    powers: dict[str, Annotated[int, Meta(ge=1, le=3)]] | UnsetType = UNSET
    special: Name | UnsetType = UNSET
    weight: NotNegative


class ScoresPart(Part, frozen=True):
    """`Scores`; null is what is not known."""

    rows: Count
    mape: NotNegative | None
    rmspe: NotNegative | None
    median_base: NotNegative | None
    median: NotNegative | None
    bias: Number | None
    beyond: NotNegative | None
    inside: Annotated[float, Meta(ge=0, le=1)] | None


class TreesPart(Part, frozen=True):
    """`Trees`: nodes in preorder, which says where trees begin and where right children are.

    Texts hold whole numbers, encoded by `packed`. The splits at one threshold of one feature share a cut.
    """

    features: list[Name]
    cuts: list[list[Number]]  # the thresholds of each feature, in ascending order
    nodes: Annotated[int, Meta(ge=1, le=MOST_NODES)]  # of all trees
    splits: str  # of each node, 1 bit: whether it splits
    cut: str  # of each split, its place among all features' cuts, in as few bits as the last place takes
    exponents: list[Annotated[int, Meta(ge=LEAST_EXPONENT, le=0)]]  # of each tree
    leaves: str  # of each leaf, LEAF_BITS: its value is (number - 2^(LEAF_BITS - 1)) * 2^exponent


class MeasuredPart(Part, frozen=True):
    """Upper halves of configurations' numbers, sorted; `steps` lead from each to the next, `packed`."""

    count: Annotated[int, Meta(ge=0, le=MOST_MEASURED)]
    bits: Annotated[int, Meta(ge=1, le=MOST_BITS)]
    steps: str


class RegressorPart(Part, frozen=True, kw_only=True):
    """`Regressor`, with the key that it stands under; `reach` null is one without end."""

    kind: Name
    dtype: Name
    phase: Name
    group: Name
    target: Literal["runtime_s", "power_w"]
    degree: Annotated[int, Meta(ge=0, le=3)]
    alpha: Annotated[float, Meta(ge=0, le=1)]
    factor: Positive
    short: Number
    short_s: NotNegative = Layer.short_s
    exponent: Exponent = msgspec.field(name="speed_exponent")
    alignment: Alignment | None
    launch_s: NotNegative
    least: NotNegative
    terms: list[TermPart]
    box: dict[str, tuple[Octaves, Octaves]] = msgspec.field(name="box_log2")
    spread: Spread
    scores: ScoresPart
    reach: NotNegative | None
    trees: TreesPart | None = msgspec.field(name="residual")
    measured: MeasuredPart
    levels: list[Annotated[float, Meta(gt=0, le=MOST_NUMBER)] | None] = []  # by device, in the card's order


class LawPart(Part, frozen=True):
    """`Law` of an accelerator: the factors of all levels together, as logarithms."""

    launch_s: Positive
    doubt: Doubt
    taught: bool  # whether networks on this very device moved it
    factors: dict[Name, Annotated[float, Meta(ge=-MOST_FACTOR, le=MOST_FACTOR)]]


class MovedPart(Part, frozen=True):
    """A factor that networks moved, and those that moved it most."""

    factor: Name
    times: Positive
    networks: list[Name]


class CardPart(Part, frozen=True):
    """The predictor's device and the measurements that it was trained on."""

    name: str = ""
    rows: Count = 0
    accelerator: bool = False
    platform: str | None = None
    devices: dict[str, HardwarePart] = {}
    hardware: dict[str, Any] | None = None  # as in `dataset.json`
    sessions: list[dict[str, Any]] | None = None
    source: Any = None
    trained: str = ""
    networks: Count = 0
    rejected: Count = 0
    calibrated_from: str = ""
    calibrated_with: Count = 0
    moved: list[MovedPart] = []
    unlike: list[str] = []
    here: str = ""
    spread: NotNegative | None = None
    unknown_vendor: str | None = None


class PredictorPart(Part, frozen=True, kw_only=True):
    """A whole file."""

    schema: Literal[5]
    neuralpower: str
    device: Name
    learner: Literal["hybrid", "lasso", "law"]
    portable: bool
    sentinel_s: Positive | None
    speed: NetworkSpeed | None = msgspec.field(name="network_speed")
    system: Deviation
    resident: Annotated[float, Meta(gt=-1, le=MOST_LOG)] = 0.0
    hardware: HardwarePart | None
    dataset: CardPart
    dispatch: DispatchPart | None
    units: dict[str, str]
    rooflines: dict[str, Roofline]
    regressors: list[RegressorPart]
    law: LawPart | None = (
        None  # what whole networks say where no regressor knows a call; None: none of its own
    )
