"""The format of a predictor's file: a Struct for each object of the JSON, whose types are its rules.

A file may come from a stranger. Reading checks each number once: it is finite, has the sign and the range
that the formulas take, and names what exists. Arrays are checked as arrays.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from neuralpower.data.dataset_format import check_hardware
from neuralpower.devices.spec import FASTEST_FLOPS, HIGHEST_W, KEYS
from neuralpower.dtypes import DTYPES
from neuralpower.errors import InputError, PredictorError, unknown
from neuralpower.files.json_files import nullable, shown
from neuralpower.files.packed import MOST_BITS, packed, unpacked, width
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import BACKWARD, FORWARD, LARGEST, plain_group
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.file_struct import MOST_LOG, MOST_NUMBER, Exponent, Log, NotNegative, Part, Positive
from neuralpower.learn.keys import ALL, ANY, INTEGER, TOGETHER, Key
from neuralpower.learn.launch_overhead import Cost, Dispatch
from neuralpower.learn.pace import NetworkSpeed
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.problem import Array, Term
from neuralpower.learn.regressor import Regressor, Scores, Spread
from neuralpower.learn.slopes import Alignment
from neuralpower.learn.trees import MOST_LEAVES, Trees, right_children, starts
from neuralpower.platforms import hardware_of, hardware_to_json
from neuralpower.version import __version__

T = TypeVar("T")

SCHEMA = 5
OLDER = 4  # is read, too: its trees are lists of nodes
RUNTIME, POWER = "runtime_s", "power_w"
KEY = ("kind", "dtype", "phase", "group")
UNITS = {"runtime": "s", "power": "W", "flops": "FLOP (1 multiply-add = 2)", "bytes": "B"}
WAY_OUT = "train it again with train-predictor, or take another copy of the file"

# Leaves are whole steps of a size that each tree has for itself. Rounding moves log time by 4e-5 in 400
# trees.
LEAF_BITS, LEAST_EXPONENT = 16, -80
MOST_NODES, MOST_MEASURED = 2**20, 2**24  # of one regressor: some 16 and 500 times the largest shipped one

Number = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
Deviation = Annotated[float, Meta(ge=0, le=MOST_LOG)]
Octaves = Annotated[float, Meta(ge=-1100.0, le=1100.0)]  # those of double precision
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
    idle_w: Watts | None = None
    year: Annotated[int, Meta(ge=1970, le=2100)] | None = None
    lanes_per_scheduler: Annotated[float, Meta(ge=1, le=1024)] | None = None
    clock_hz: Annotated[float, Meta(ge=KEYS["clock_hz"].low, le=KEYS["clock_hz"].high)] | None = None
    link_bytes_per_s: Annotated[float, Meta(gt=0, le=KEYS["link_bytes_per_s"].high)] | None = None
    pcie_bytes_per_s: Annotated[float, Meta(gt=0, le=KEYS["pcie_bytes_per_s"].high)] | None = None
    network_bytes_per_s: Annotated[float, Meta(gt=0, le=KEYS["network_bytes_per_s"].high)] | None = None
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


class TermPart(Part, frozen=True, kw_only=True):
    """`Term` with its weight: a product of dimensions' powers, or a special one by name."""

    powers: dict[str, Annotated[int, Meta(ge=1, le=3)]] | UnsetType = UNSET
    special: Name | UnsetType = UNSET
    weight: NotNegative


class SpreadPart(Part, frozen=True):
    """`Spread`."""

    edges: list[Octaves]
    low: list[Log]
    high: list[Log]
    growth: Deviation
    common: Deviation
    common_growth: Deviation
    tail: Octaves = 1e3


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
    spread: SpreadPart
    scores: ScoresPart
    reach: NotNegative | None
    trees: TreesPart | None = msgspec.field(name="residual")
    measured: MeasuredPart
    levels: list[Annotated[float, Meta(gt=0, le=MOST_NUMBER)] | None] = []  # by device, in the card's order


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
    unlike: list[str] = []
    here: str = ""
    spread: NotNegative | None = None
    unknown_vendor: str | None = None


class PredictorPart(Part, frozen=True, kw_only=True):
    """A whole file."""

    schema: Literal[5]
    neuralpower: str
    device: Name
    learner: Literal["hybrid", "lasso"]
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


# ---- the older format ----


class OlderTreesPart(Part, frozen=True):
    """`TreesPart` as lists: each node's feature, -1 for a leaf, and its threshold or the leaf's value."""

    features: list[Name]
    roots: list[Count]
    feature: list[Annotated[int, Meta(ge=-1, le=10_000)]]
    number: list[Number]


class OlderRegressorPart(RegressorPart, frozen=True, kw_only=True):
    """`RegressorPart` whose `measured` is 4 bytes per number in base 64."""

    trees: OlderTreesPart | None = msgspec.field(name="residual")  # type: ignore[assignment]
    measured: str  # type: ignore[assignment]


class OlderPredictorPart(PredictorPart, frozen=True, kw_only=True):
    """`PredictorPart` of schema 4."""

    schema: Literal[4]  # type: ignore[assignment]
    regressors: list[OlderRegressorPart]  # type: ignore[assignment]


# ---- from memory to the file ----


def to_json(predictor: Predictor) -> dict[str, Any]:
    """The whole predictor as plain values."""
    p = predictor
    targets = ((RUNTIME, p.regressors), (POWER, p.power or {}))
    return _plain(
        PredictorPart,
        p,
        schema=SCHEMA,
        neuralpower=__version__,
        units=UNITS,
        portable=bool(p.view.pooled),
        hardware=p.hardware and hardware_to_json(p.hardware),
        dispatch=p.dispatch and _dispatch_to_json(p.dispatch),
        regressors=[
            _regressor_to_json(key, target, r) for target, some in targets for key, r in some.items()
        ],
    )


def _plain(part: type[Part], value: Any, **others: Any) -> dict[str, Any]:
    """The fields of a part by their names in the file, from `others`, else from attributes of the value."""
    fields = msgspec.structs.fields(part)
    given = {f.encode_name: others[f.name] if f.name in others else getattr(value, f.name) for f in fields}
    plain: dict[str, Any] = msgspec.to_builtins(given, enc_hook=lambda array: array.tolist())
    return plain


def _dispatch_to_json(dispatch: Dispatch) -> dict[str, Any]:
    costs = [
        _plain(CostPart, cost, kind=kind, phase=phase, function=function)
        for (kind, phase, function), cost in dispatch.costs.items()
    ]
    return _plain(DispatchPart, dispatch, costs=costs)


def _regressor_to_json(key: Key, target: str, r: Regressor) -> dict[str, Any]:
    terms = [
        {**({"special": term.special} if term.special else {"powers": dict(term.powers)}), "weight": weight}
        for term, weight in zip(r.terms, r.weights.tolist(), strict=True)
    ]
    return _plain(
        RegressorPart,
        r,
        **dict(zip(KEY, key, strict=True)),
        target=target,
        terms=terms,
        scores=nullable(dataclasses.asdict(r.scores)),
        reach=nullable(r.reach),
        trees=r.trees and _trees_to_json(r.trees),
        measured=_measured_to_json(np.zeros(0, np.uint32) if r.measured is None else r.measured),
    )


def _trees_to_json(trees: Trees) -> dict[str, Any]:
    """Thresholds stand once each; leaves are rounded to whole steps of a power of two, one for each tree."""
    inner = trees.feature >= 0
    cuts, cut, first = [], np.zeros(len(inner), dtype=np.int64), 0
    for feature in range(len(trees.features)):
        here = trees.feature == feature
        thresholds, place = np.unique(trees.number[here], return_inverse=True)
        cuts.append(thresholds)
        cut[here] = first + place
        first += len(thresholds)
    most, values = 2 ** (LEAF_BITS - 1), np.where(inner, 0.0, trees.number)
    exponents = np.frexp(np.maximum.reduceat(np.abs(values), trees.roots) / (most - 1))[1]
    exponents = np.maximum(exponents, LEAST_EXPONENT)
    scaled = np.round(np.ldexp(values, -np.repeat(exponents, np.diff(trees.roots, append=len(inner)))))
    return _plain(
        TreesPart,
        trees,
        cuts=cuts,
        nodes=len(inner),
        splits=packed(inner, 1),
        cut=packed(cut[inner], width(first - 1)),
        exponents=exponents,
        leaves=packed(scaled[~inner] + most, LEAF_BITS),
    )


def _measured_to_json(measured: Array) -> dict[str, Any]:
    steps = np.diff(measured.astype(np.int64), prepend=0)
    bits = width(steps.max(initial=0))
    return {"count": len(steps), "bits": bits, "steps": packed(steps, bits)}


# ---- from the file to memory ----


def from_json(data: Any, name: str = "", place: str = "") -> Predictor:
    """The reverse of `to_json`, from plain values without NaN; an error names `place`, the file.

    Raises:
        PredictorError: another schema, missing parts, or a value that breaks a rule.
    """
    place = place or f"predictor {name!r}"
    if not isinstance(data, Mapping):
        raise PredictorError(
            f"{place}: holds a {type(data).__name__}, a predictor file holds an object; train it again"
        )
    schema = data.get("schema")
    if schema not in (OLDER, SCHEMA) or isinstance(schema, (bool, float)):
        raise PredictorError(
            f"predictor {name!r} has schema {shown(schema)}, this version reads {OLDER} and {SCHEMA}; "
            "train it again with train-predictor"
        )
    try:
        part = _converted(_current(data), PredictorPart if schema == SCHEMA else OlderPredictorPart)
        predictor = _predictor(part, data["dataset"], name)
    except (ValueError, InputError) as error:
        raise PredictorError(f"{place}: {error}; {WAY_OUT}") from None
    predictor.check_formulas()
    return predictor


def _current(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same without the exponent of products of a few rows, which earlier files have."""
    speed = data.get("network_speed")
    if not isinstance(speed, Mapping):
        return data
    return {**data, "network_speed": {name: speed[name] for name in speed if name != "streaming_exponent"}}


def _predictor(part: PredictorPart, dataset: Mapping[str, Any], name: str) -> Predictor:
    _check_whole(part)
    regressors = _regressors(part.regressors)
    return _made(
        Predictor,
        part,
        name=name,
        dataset=dataset,
        regressors=regressors[RUNTIME],
        power=regressors[POWER] or None,
        hardware=part.hardware and hardware_of(msgspec.structs.asdict(part.hardware)),
        trained_on=max(2, len(part.dataset.devices)) if part.portable else 1,
        dispatch=part.dispatch and _dispatch(part.dispatch),
    )


def _made(target: type[T], part: Part, **others: Any) -> T:
    """A dataclass from `others`, and the part's fields of the same names."""
    names = {f.name for f in dataclasses.fields(target)} & {*part.__struct_fields__}  # type: ignore[arg-type]
    return target(**{name: getattr(part, name) for name in names} | others)


# msgspec's wording of a rule -> the wording of other messages.
WORDS = (
    (r"`", ""),
    (r"^Object missing required field", "lacks"),
    (r"^Object contains unknown field (.*)$", r"has \1, which is not a field of it"),
    (r"^Invalid enum value .*$", "must be one that this version knows"),
    (r"^Number out of range$", "must be a smaller number"),
    (r"^Expected (.*?)(, got .*)?$", r"must be \1"),
    (r"\bfloat\b", "a number"),
    (r"\bint\b", "a whole number"),
    (r"\bstr matching regex .*$", "a text in one line"),
    (r"\bstr\b", "a text"),
    (r"\bbool\b", "true or false"),
    (r"\bobject\b", "an object"),
    (r"\barray\b", "a list"),
    (r" \| ", " or "),
)


def _converted(data: Mapping[str, Any], part: type[PredictorPart]) -> PredictorPart:
    """Plain values as a part; raises ValueError with the place, the value and the rule."""
    required = [f.encode_name for f in msgspec.structs.fields(part) if f.required]
    missing = [name for name in required if name not in data]
    if missing:
        raise ValueError(f"is incomplete (it lacks {', '.join(missing)})")
    try:
        return msgspec.convert(data, part)
    except msgspec.ValidationError as error:
        raise ValueError(_broken_rule(str(error), data)) from None


def _broken_rule(text: str, data: Any) -> str:
    """The rule that msgspec names, with the value, and the regressor by its name rather than its number."""
    rule, _, path = text.partition(" - at `$")
    path, value, title = path.rstrip("`"), data, ""
    steps = re.findall(r"[^.\[\]]+|\.\.\.", path)
    regressor = re.match(r"\.regressors\[(\d+)\]", path)
    if regressor:
        title = f"{_title(data['regressors'][int(regressor[1])])}: "
        path = path[regressor.end() :]
    field = path.strip(".")
    rule = functools.reduce(lambda said, change: re.sub(change[0], change[1], said), WORDS, rule)
    # msgspec does not name the key of an object's value
    if rule.startswith(("lacks", "has")) or "..." in steps:
        return f"{title}{'a value of ' * ('...' in steps)}{field.replace('[...]', '') or 'it'} {rule}"
    for step in steps:
        value = value[int(step) if isinstance(value, (list, tuple)) else step]
    return f"{title}{field or 'it'} is {shown(value)}, but {rule}"


def _title(regressor: Any) -> str:
    """The names of a regressor, as far as it has them."""
    if not isinstance(regressor, Mapping):
        return "a regressor"
    names = [str(regressor.get(name, "?"))[:60] for name in (*KEY, "target")]
    return f"regressor {' '.join(names[:4])} ({names[4]})"


def _wrong(field: str, value: Any, rule: str) -> ValueError:
    return ValueError(f"{field} is {shown(value)}, but must be {rule}")


def _check_whole(part: PredictorPart) -> None:
    """Raise ValueError or InputError for a wrong value outside the regressors."""
    if part.units != UNITS:
        raise _wrong("units", part.units, f"those of all predictors, {UNITS}")
    if not part.rooflines:
        raise _wrong("rooflines", part.rooflines, "one or more")
    if part.hardware is None and not part.portable:
        raise _wrong("hardware", None, "an object where the predictor is of one device")
    check_hardware(part.dataset.hardware or {})
    for hardware in (part.hardware, *part.dataset.devices.values()):
        _check_hardware(hardware)
    for dtype in part.rooflines:
        _known("dtype of a roofline", dtype, DTYPES)


def _check_hardware(hardware: HardwarePart | None) -> None:
    if hardware is None:
        return
    for dtype in hardware.peak_flops_per_s:
        _known("dtype of peak_flops_per_s", dtype, DTYPES)
    if (hardware.idle_w or 0.0) >= (hardware.limit_w or math.inf):
        raise _wrong("hardware.idle_w", hardware.idle_w, f"less than limit_w, which is {hardware.limit_w}")


def _known(what: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise unknown(what, value, known, PredictorError)


@functools.cache
def _phases(kind: type[Layer]) -> tuple[str, ...]:
    own = str(kind.defaults()["phase"])
    return (FORWARD, BACKWARD) if own == FORWARD else (own,)


def _dispatch(part: DispatchPart) -> Dispatch:
    costs: dict[tuple[str, str, str], Cost] = {}
    for one in part.costs:
        key = one.kind, one.phase, one.function
        _known("layer kind of dispatch", one.kind, KINDS)
        _known(f"phase of dispatch of {one.kind}", one.phase, _phases(KINDS[one.kind]))
        if one.function and one.function not in KINDS[one.kind].words.get("function", ()):
            raise _wrong(f"function of dispatch of {one.kind}", one.function, "one that the kind has")
        if key in costs:
            raise ValueError(f"dispatch has the cost of {' '.join(key)} twice; remove one")
        costs[key] = _made(Cost, one)
    return _made(Dispatch, part, costs=costs)


def _regressors(parts: Sequence[RegressorPart]) -> dict[str, dict[Key, Regressor]]:
    """Regressors by target and key; raises ValueError with the regressor's name."""
    found: dict[str, dict[Key, Regressor]] = {RUNTIME: {}, POWER: {}}
    for part in parts:
        key = (part.kind, part.dtype, part.phase, part.group)
        try:
            if key in found[part.target]:
                raise ValueError("stands twice in the file; remove one")
            _check_key(part)
            found[part.target][key] = _regressor(part)
        except (ValueError, InputError) as error:
            raise ValueError(f"{_title(msgspec.structs.asdict(part))}: {error}") from None
    return found


def _check_key(part: RegressorPart) -> None:
    """Raise PredictorError for a kind, dtype, phase or group that no layer has."""
    _known("layer kind of the predictor", part.kind, KINDS)
    if part.target == POWER and {part.dtype, part.phase, part.group} == {ANY}:
        return
    kind = KINDS[part.kind]
    _known("dtype", part.dtype, (*DTYPES, INTEGER, ANY))
    _known("phase", part.phase, _phases(kind))
    for group in part.group.split(TOGETHER):
        _known(f"group of {part.kind}", plain_group(group), (*kind.group_names, ALL))


def _regressor(part: RegressorPart) -> Regressor:
    if part.factor + part.short <= 0:
        raise _wrong(
            "short", part.short, f"more than -factor, which is {-part.factor:g}: no time would be left"
        )
    if part.alignment is not None and part.alignment.floor <= 0:
        raise _wrong("alignment.floor", part.alignment.floor, "above 0")
    for name, (low, high) in part.box.items():
        if low > high:
            raise _wrong(f"box_log2.{name}", [low, high], f"low and high, and {low:g} is above {high:g}")
    unknown_scores = {n: math.nan for n, v in msgspec.structs.asdict(part.scores).items() if v is None}
    return _made(
        Regressor,
        part,
        terms=tuple(_term(i, term) for i, term in enumerate(part.terms)),
        weights=np.array([term.weight for term in part.terms], dtype=np.float64),
        trees=part.trees and _trees(part.trees),
        reach=math.inf if part.reach is None else part.reach,
        spread=_spread(part.spread),
        scores=_made(Scores, part.scores, **unknown_scores),
        measured=_measured(part.measured),
    )


def _term(number: int, part: TermPart) -> Term:
    if (part.powers is UNSET) == (part.special is UNSET):
        raise ValueError(f"terms[{number}] must have powers or special, one of them")
    return Term(tuple((part.powers or {}).items()), part.special or "")


def _spread(part: SpreadPart) -> Spread:
    edges, low, high = (np.array(values, dtype=np.float64) for values in (part.edges, part.low, part.high))
    if not len(low) == len(high) == len(edges) + 1:
        raise ValueError(
            f"spread has {len(edges)} edges, {len(low)} low and {len(high)} high bounds, "
            "but must have one more of these than edges"
        )
    if (np.diff(edges) < 0).any():
        raise _wrong("spread.edges", part.edges, "in ascending order")
    for name, word, values, wrong in (("low", "most", low, low > 0), ("high", "least", high, high < 0)):
        if wrong.any():
            rule = f"at {word} 0: bounds enclose a prediction"
            raise _wrong(f"spread.{name}", float(values[wrong][0]), rule)
    return _made(Spread, part, edges=edges, low=low, high=high)


def _trees(part: TreesPart | OlderTreesPart) -> Trees:
    """The arrays; raises ValueError unless they are whole trees of no more leaves than can be evaluated."""
    roots, feature, number = _older_nodes(part) if isinstance(part, OlderTreesPart) else _nodes(part)
    leaves = np.add.reduceat(feature < 0, roots, dtype=np.int64)
    if leaves.max() > MOST_LEAVES:
        raise _wrong("residual", int(leaves.max()), f"trees of at most {MOST_LEAVES} leaves each")
    for most, none in ((np.maximum, -math.inf), (np.minimum, math.inf)):
        said = float(np.sum(most.reduceat(np.where(feature < 0, number, none), roots)))
        if abs(said) > MOST_LOG:
            field = "number" if isinstance(part, OlderTreesPart) else "leaves"
            rule = f"within {MOST_LOG:g} of 0 where leaves of all trees add up"
            raise _wrong(f"residual.{field}", said, rule)
    return Trees(tuple(part.features), roots, feature, right_children(feature), number)


def _nodes(part: TreesPart) -> tuple[Array, Array, Array]:
    """(where each tree begins, feature of each node, its threshold or value); raises ValueError."""
    if len(part.cuts) != len(part.features):
        need = f"but must have one for each of {len(part.features)} features"
        raise ValueError(f"residual.cuts has {len(part.cuts)} lists, {need}")
    sizes = [len(cuts) for cuts in part.cuts]
    cuts = np.array([cut for some in part.cuts for cut in some], dtype=np.float64)
    features = np.repeat(np.arange(len(sizes)), sizes)
    if ((np.diff(cuts) < 0) & (np.diff(features) == 0)).any():
        raise ValueError("residual.cuts must be in ascending order for each feature")
    inner = _numbers("residual.splits", part.splits, 1, part.nodes) > 0
    roots = starts(inner)
    if roots is None:
        raise ValueError("residual.splits must be those of whole trees, one after the other in preorder")
    cut = _numbers("residual.cut", part.cut, width(len(cuts) - 1), int(inner.sum()))
    if len(cut) and cut.max() >= len(cuts):
        raise _wrong("residual.cut", int(cut.max()), f"the place of one of {len(cuts)} cuts")
    if len(part.exponents) != len(roots):
        need = f"but must have one for each of {len(roots)} trees"
        raise ValueError(f"residual has {len(part.exponents)} exponents, {need}")
    leaves = _numbers("residual.leaves", part.leaves, LEAF_BITS, int((~inner).sum())) - 2 ** (LEAF_BITS - 1)
    feature, number = np.full(len(inner), -1), np.empty(len(inner))
    feature[inner], number[inner] = features[cut], cuts[cut]
    exponents = np.repeat(part.exponents, np.add.reduceat(~inner, roots, dtype=np.int64))
    number[~inner] = np.ldexp(leaves.astype(np.float64), exponents)
    return roots, feature, number


def _older_nodes(part: OlderTreesPart) -> tuple[Array, Array, Array]:
    """As `_nodes`."""
    roots, feature = np.array(part.roots, dtype=np.int64), np.array(part.feature, dtype=np.int64)
    number = np.array(part.number, dtype=np.float64)
    if len(feature) != len(number):
        counts = f"{len(feature)} features of nodes and {len(number)} numbers"
        raise ValueError(f"residual has {counts}, but must have one per node")
    if len(feature) and feature.max() >= len(part.features):
        rule = f"-1 or the place of one of {len(part.features)} features"
        raise _wrong("residual.feature", int(feature.max()), rule)
    found = starts(feature >= 0)
    if found is None or not np.array_equal(roots, found):
        rule = "where the trees begin whose nodes are in preorder, each of them complete"
        raise ValueError(f"residual.roots must be {rule}")
    return roots, feature, number


def _numbers(field: str, text: str, bits: int, count: int) -> Array:
    try:
        return unpacked(text, bits, count)
    except ValueError as error:
        raise ValueError(f"{field} {error}") from None


def _measured(part: MeasuredPart | str) -> Array:
    """Upper halves of configurations' numbers, sorted, [configurations] uint32; a text is of schema 4."""
    if isinstance(part, MeasuredPart):
        found = np.cumsum(_numbers("measured.steps", part.steps, part.bits, part.count))
        if len(found) and found[-1] >= 2**MOST_BITS:
            raise ValueError(f"measured.steps add up to {found[-1]}, but must stay below 2^{MOST_BITS}")
        return found.astype(np.uint32)
    try:
        data = base64.b64decode(part, validate=True)
    except ValueError as error:
        raise ValueError(f"measured is {shown(part)}, but must be base 64 ({error})") from None
    if len(data) % 4:
        raise ValueError(f"measured holds {len(data)} bytes, but must hold numbers of 4 bytes each")
    found = np.frombuffer(data, dtype="<u4")
    if (found[1:] < found[:-1]).any():
        raise ValueError("measured must be in ascending order")
    return found
