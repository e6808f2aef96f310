"""Predictors as JSON: written, and read.

No pickle: a file from a stranger runs no code. Reading checks each number once: it is finite, has the sign
and the range that the formulas take, and names what exists. Arrays are checked as arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET

from neuralpower.data.schema import PRODUCTS, check_hardware
from neuralpower.dtypes import DTYPES, floats_of
from neuralpower.errors import DatasetError, InputError, PredictorError, unknown, writing
from neuralpower.files.atomic import check_place, replace_file
from neuralpower.files.json_files import json_text, nullable, shown
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import BACKWARD, FORWARD, plain_group
from neuralpower.layers.rows import defaults
from neuralpower.learn.files.file_struct import MOST_BITS, MOST_LOG, Part, packed, unpacked, width
from neuralpower.learn.files.predictor_parts import (
    KEY,
    LEAF_BITS,
    LEAST_EXPONENT,
    POWER,
    RUNTIME,
    SCHEMA,
    UNITS,
    CostPart,
    DispatchPart,
    HardwarePart,
    LawPart,
    MeasuredPart,
    PredictorPart,
    RegressorPart,
    TermPart,
    TreesPart,
)
from neuralpower.learn.fitting.problem import Array, Term
from neuralpower.learn.fitting.trees import MOST_LEAVES, Trees, right_children, starts
from neuralpower.learn.keys import ALL, ANY, INTEGER, TOGETHER, Key
from neuralpower.learn.launch_overhead import Cost, Dispatch
from neuralpower.learn.predictor import LAW, Predictor
from neuralpower.learn.regressor import Regressor, Scores, Spread
from neuralpower.learn.unmeasured.prior import Law
from neuralpower.platforms import hardware_of, hardware_to_json
from neuralpower.version import __version__

T = TypeVar("T")

DIGITS = 7  # significant ones of the numbers in the file
WAY_OUT = "train it again with train-predictor, or take another copy of the file"


# ---- writing ----


def check_places(path: Path) -> None:
    """Make the folder; raise InputError early where a predictor's file or card cannot be written."""
    with writing(path, "--out"):
        path.parent.mkdir(parents=True, exist_ok=True)
    check_place(path, "predictor.json")
    card = path.with_suffix(".md")
    if card == path:
        name = f"{path.stem}.json"
        raise InputError(f"{path}: is the name of the predictor's card; choose another name, such as {name}")
    if path.suffix != ".json":
        raise InputError(f"{path}: a predictor's file ends in .json; choose {path.with_suffix('.json')}")
    check_place(card, "predictor.json")


def save(predictor: Predictor, path: Path) -> None:
    """Write the JSON file; raises DatasetError where it cannot be written."""
    with writing(path, "place", DatasetError):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_text(_rounded(to_json(predictor)), compact=True) + "\n")


def _rounded(value: Any) -> Any:
    """Floats to DIGITS significant digits, so that the file stays small."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(predictor: Predictor) -> dict[str, Any]:
    p = predictor
    targets = ((RUNTIME, p.regressors), (POWER, p.power or {}))
    plain = _plain(
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
        law=_plain(LawPart, p.law)
        if p.law and p.learner == LAW
        else None,  # that of the package stays in the package
    )
    if plain["law"] is None:
        del plain["law"]  # so that earlier versions read the file
    return plain


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


# ---- reading ----


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
    if schema != SCHEMA or isinstance(schema, float):
        raise PredictorError(
            f"predictor {name!r} has schema {shown(schema)}, this version reads {SCHEMA}; "
            "train it again with train-predictor"
        )
    try:
        part = _converted(_current(data))
        predictor = _predictor(part, data["dataset"], name)
    except (ValueError, InputError) as error:
        raise PredictorError(f"{place}: {error}; {WAY_OUT}") from None
    predictor.own.check_formulas()
    return predictor


def _current(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same without the exponent of products of a few rows, which earlier files have."""
    speed = data.get("network_speed")
    if not isinstance(speed, Mapping):
        return data
    return {**data, "network_speed": {name: speed[name] for name in speed if name != "streaming_exponent"}}


def _predictor(part: PredictorPart, dataset: Mapping[str, Any], name: str) -> Predictor:
    _check_whole(part)
    hardware = part.hardware and hardware_of(msgspec.structs.asdict(part.hardware))
    law = None if part.law is None or hardware is None else _made(Law, part.law, hardware=hardware)
    regressors = _regressors(part.regressors)
    return _made(
        Predictor,
        part,
        name=name,
        dataset=dataset,
        regressors=regressors[RUNTIME],
        power=regressors[POWER] or None,
        hardware=hardware,
        law=law,
        answers=() if law is None else floats_of(law.hardware.peak_flops_per_s),
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


def _converted(data: Mapping[str, Any]) -> PredictorPart:
    """Plain values as a part; raises ValueError with the place, the value and the rule."""
    required = [f.encode_name for f in msgspec.structs.fields(PredictorPart) if f.required]
    missing = [name for name in required if name not in data]
    if missing:
        raise ValueError(f"is incomplete (it lacks {', '.join(missing)})")
    try:
        return msgspec.convert(data, PredictorPart)
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
    if (part.learner == LAW) != (part.law is not None) or (part.law is not None and part.portable):
        raise _wrong(
            "law", part.law and "an object", f"there for learner {LAW} of one device, and for no other"
        )
    check_hardware(part.dataset.hardware or {})
    for hardware in (part.hardware, *part.dataset.devices.values()):
        _check_hardware(hardware)
    for dtype in part.rooflines:
        _known("dtype of a roofline", dtype, DTYPES)


def _check_hardware(hardware: HardwarePart | None) -> None:
    if hardware is None:
        return
    for name in ("peak_flops_per_s", PRODUCTS):
        for dtype in getattr(hardware, name):
            _known(f"dtype of {name}", dtype, DTYPES)
    if (hardware.idle_w or 0.0) >= (hardware.limit_w or math.inf):
        raise _wrong("hardware.idle_w", hardware.idle_w, f"less than limit_w, which is {hardware.limit_w}")


def _known(what: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise unknown(what, value, known, PredictorError)


@functools.cache
def _phases(kind: type[Layer]) -> tuple[str, ...]:
    own = str(defaults(kind)["phase"])
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
    _check_spread(part.spread)
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
        scores=_made(Scores, part.scores, **unknown_scores),
        measured=_measured(part.measured),
    )


def _term(number: int, part: TermPart) -> Term:
    if (part.powers is UNSET) == (part.special is UNSET):
        raise ValueError(f"terms[{number}] must have powers or special, one of them")
    return Term(tuple((part.powers or {}).items()), part.special or "")


def _check_spread(spread: Spread) -> None:
    edges, low, high = spread.edges, spread.low, spread.high
    if not len(low) == len(high) == len(edges) + 1:
        raise ValueError(
            f"spread has {len(edges)} edges, {len(low)} low and {len(high)} high bounds, "
            "but must have one more of these than edges"
        )
    if edges != sorted(edges):
        raise _wrong("spread.edges", edges, "in ascending order")
    for name, word, wrong in (
        ("low", "most", [bound for bound in low if bound > 0]),
        ("high", "least", [bound for bound in high if bound < 0]),
    ):
        if wrong:
            raise _wrong(f"spread.{name}", wrong[0], f"at {word} 0: bounds enclose a prediction")


def _trees(part: TreesPart) -> Trees:
    """The arrays; raises ValueError unless they are whole trees of no more leaves than can be evaluated."""
    roots, feature, number = _nodes(part)
    leaves = np.add.reduceat(feature < 0, roots, dtype=np.int64)
    if leaves.max() > MOST_LEAVES:
        raise _wrong("residual", int(leaves.max()), f"trees of at most {MOST_LEAVES} leaves each")
    for most, none in ((np.maximum, -math.inf), (np.minimum, math.inf)):
        said = float(np.sum(most.reduceat(np.where(feature < 0, number, none), roots)))
        if abs(said) > MOST_LOG:
            raise _wrong(
                "residual.leaves", said, f"within {MOST_LOG:g} of 0 where leaves of all trees add up"
            )
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


def _numbers(field: str, text: str, bits: int, count: int) -> Array:
    try:
        return unpacked(text, bits, count)
    except ValueError as error:
        raise ValueError(f"{field} {error}") from None


def _measured(part: MeasuredPart) -> Array:
    """Upper halves of configurations' numbers, sorted, [configurations] uint32."""
    found = np.cumsum(_numbers("measured.steps", part.steps, part.bits, part.count))
    if len(found) and found[-1] >= 2**MOST_BITS:
        raise ValueError(f"measured.steps add up to {found[-1]}, but must stay below 2^{MOST_BITS}")
    return found.astype(np.uint32)
