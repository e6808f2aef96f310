"""The format of `dataset.json` and of a journal: a Struct per object, whose types are its rules; reading it.

Descriptions give `dataset.json`'s rules as text. null means not known. Unknown names are ignored, unless one
is nearly a known name.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from neuralpower.data.columns import LONGEST_S
from neuralpower.devices.spec import FLOPS, KEYS, LINKS, Key
from neuralpower.dtypes import PEAKS
from neuralpower.errors import DatasetError, unknown
from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text, not_finite, read_json, shown
from neuralpower.files.paths import check_regular, is_file, is_folder

SCHEMA = 1


def _number(rule: Key) -> Any:
    """The type of a number that a device can have."""
    words = f"a{' whole' * rule.whole} number from {rule.low:g} to {rule.high:g} {rule.unit}".rstrip()
    whole = 1 if rule.whole else None  # 4e6 is a whole number, too
    return Annotated[float, Meta(ge=rule.low, le=rule.high, multiple_of=whole, description=words)]


PEAK_FIELDS = [(dtype, _number(FLOPS) | UnsetType, UNSET) for dtype in PEAKS]
Peaks = msgspec.defstruct("Peaks", PEAK_FIELDS, module=__name__)
OF_SHEETS = ("cores", "l2_bytes", "llc_bytes", "memory_bytes_per_s", "limit_w", "idle_w", "clock_hz", *LINKS)
FRESH, COPIED, PRODUCTS = "fresh_s_per_byte", "copied_bytes_per_s", "product_flops_per_s"
NUMBERS = {
    **{name: KEYS[name] for name in OF_SHEETS},
    "base_clock": Key(0.01, 1, "of the boost clock"),
    "year": Key(1970, 2100, "", whole=True),
    "lanes_per_scheduler": Key(1, 1024, "lanes"),
    FRESH: Key(0, 1e-6, "s"),
    COPIED: Key(1e6, 1e14, "B/s"),
}
Text = Annotated[str, Meta(description="a text")]
Texts = Annotated[list[str], Meta(description="a list of names")]
Seconds = Annotated[float, Meta(ge=0, lt=LONGEST_S, description="seconds, 0 or more")]
Truth = Annotated[bool, Meta(description="true or false")]
HardwareMeta = msgspec.defstruct(
    "HardwareMeta",
    [
        ("name", Text | None, None),
        ("flags", Texts | None, None),  # which distinguish CPUs, as names do
        ("platform", Text | None, None),
        ("accelerator", Truth | None, None),  # in files that name no platform
        *(
            (name, Annotated[Peaks, Meta(description="an object of FLOP/s by dtype")] | None, None)
            for name in ("peak_flops_per_s", PRODUCTS)
        ),
        *((name, _number(rule) | None, None) for name, rule in NUMBERS.items()),
    ],
    module=__name__,
)
MEASURED = ("idle_w", FRESH, COPIED, PRODUCTS)  # anew in each run: datasets of a device may differ
HARDWARE = (
    "platform",
    "accelerator",
    "peak_flops_per_s",
    PRODUCTS,
    *NUMBERS,
)  # a difference changes what is trained


class SessionMeta(msgspec.Struct):
    """One run of a collection."""

    dtypes: Texts | None = None
    self_test: Annotated[dict[str, Any], Meta(description="an object")] | None = None


class DatasetMeta(msgspec.Struct, kw_only=True):
    """The whole file."""

    schema: Literal[1]
    device: Annotated[str, Meta(pattern=r"\S", description="a name")]
    includes_launch: Truth | None = None
    autograd_start_s: Seconds | None = None
    sessions: Annotated[list[SessionMeta], Meta(description="a list of objects")] | None = None
    hardware: Annotated[HardwareMeta, Meta(description="an object")] | None = None  # type: ignore[valid-type]


class Record(msgspec.Struct, kw_only=True, tag_field="type"):
    """One line of a collection's journal, after its checksum; `seq` counts them."""

    schema: Literal[1] = 1
    seq: Annotated[int, Meta(ge=0)] = 0


class SessionRecord(Record, kw_only=True, tag="session"):
    """A session: who measures from here on, and with what; other names go to `sessions` of `dataset.json`."""

    session_id: str
    utc: str
    up: str | None = None  # since when the machine is up


class StartRecord(Record, kw_only=True, tag="start"):
    """The start of a batch: the name of each configuration, and the number of its replicate."""

    tier: Literal["runtime", "power"]
    attempt: int
    tasks: list[tuple[str, int]]


class ResultRecord(Record, kw_only=True, tag="result"):
    """A row of the kind's table."""

    kind: str
    row: dict[str, Any]


class EventRecord(Record, kw_only=True, tag="event"):
    """The event that ended a session, or lost its meter."""

    event: Literal["stop", "device_lost", "meter_lost"]
    reason: str | None = None
    config_id: str | None = None


RECORDS = SessionRecord | StartRecord | ResultRecord | EventRecord
META = ("includes_launch", "hardware", "autograd_start_s")  # a difference changes what is trained
OWNERS = {"sessions": "{} of a session", "peak_flops_per_s": "peak_flops_per_s of {}"}  # in messages


def check_meta(meta: Mapping[str, Any]) -> None:
    """Raise DatasetError for names and values that would be misread or ignored."""
    _refuse_near(meta, "field", META)
    _check_names(meta.get("hardware"))
    _check({**meta, "schema": SCHEMA}, DatasetMeta)  # 1.0 is 1
    if not meta["device"].isprintable():
        raise _impossible("device", meta["device"], "a name")
    _check_watts(meta.get("hardware"))
    if any(not_finite(meta)):
        raise DatasetError(
            "holds NaN or Infinity, which JSON does not have; remove fields that are not known"
        )


def check_hardware(hardware: Any) -> None:
    """Raise DatasetError unless a device can have these values."""
    _check_names(hardware)
    _check(hardware, HardwareMeta)
    _check_watts(hardware)


def _check_names(hardware: Any) -> None:
    if not isinstance(hardware, dict):
        return
    _refuse_near(hardware, "value of hardware", HARDWARE)
    peaks = hardware.get("peak_flops_per_s")
    for dtype in peaks if isinstance(peaks, dict) else ():
        if dtype not in PEAKS:
            raise unknown("dtype of peak_flops_per_s", dtype, PEAKS, DatasetError)


def _refuse_near(given: Collection[str], what: str, known: Collection[str]) -> None:
    """Raise DatasetError for a name that is nearly a known one."""
    for name in given:
        if name not in known and difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.88):
            raise unknown(what, name, known, DatasetError)


def _check_watts(hardware: Mapping[str, Any] | None) -> None:
    given = hardware or {}
    idle_w, limit_w = given.get("idle_w"), given.get("limit_w")
    if idle_w is not None and limit_w is not None and limit_w <= idle_w:
        raise _impossible("idle_w", idle_w, f"less than limit_w, which is {limit_w:g}")


def _check(value: Any, part: Any) -> None:
    """Raise DatasetError, with the field, its value and its rule, unless the plain value is such a part."""
    try:
        msgspec.convert(value, part)
    except msgspec.ValidationError as error:
        raise _broken_rule(str(error), value, part) from None


def _broken_rule(text: str, value: Any, part: Any) -> DatasetError:
    """The error of msgspec as text, with the rule of the innermost field."""
    field, shown, rule, owner = "hardware", value, "an object", ""
    for step in re.findall(r"\w+", text.partition(" - at `$")[2]):
        if step.isdigit():
            value = value[int(step)]
        elif part is not None:
            within = [*_within(get_type_hints(part, include_extras=True)[step])]
            shown = value = value[step]
            field, owner = OWNERS.get(owner, "{}").format(step), step
            rule = next(one.description for one in within if isinstance(one, Meta) and one.description)
            structs = (one for one in within if isinstance(one, type) and issubclass(one, msgspec.Struct))
            part = next(structs, None)
    return _impossible(field, shown, rule)


def _within(hint: Any) -> Iterator[Any]:
    """A type and all that it is made of."""
    yield hint
    for part in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        yield from _within(part)


def _impossible(what: str, value: Any, rule: str) -> DatasetError:
    return DatasetError(f"{what} is {value!r:.200}, but must be {rule}")


# ---- Required contents of a dataset's files: `dataset.json`, and the columns of its tables ----


FEWEST_ROWS = 10  # different configurations of a group that a regressor needs


def config_id(row: Mapping[str, Any]) -> str:
    """Name of a configuration, the same on every machine: a hash of kind and fields."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def check_no_file(folder: Path) -> None:
    """Raise DatasetError for a file instead of a dataset's folder, with the command that makes one."""
    if is_file(folder):
        table = folder.suffix in (".csv", ".parquet")
        way = f"neuralpower dataset check {folder} --device NAME --out FOLDER" if table else "give its folder"
        raise DatasetError(f"{folder}: is a file, and a dataset is a folder. Fix: {way}")


def read_meta(folder: Path) -> dict[str, Any]:
    """The contents of `dataset.json`; raises DatasetError where it or the folder is missing or unusable."""
    check_regular(folder, DatasetError)
    check_no_file(folder)
    if not is_folder(folder):
        near = {p.parent for p in folder.parent.glob("*/dataset.json")} if is_folder(folder.parent) else set()
        near |= {p.parent.parent for p in folder.parent.glob("*/shard-*/dataset.json")}
        raise unknown("dataset", str(folder), map(str, near), DatasetError)
    file = folder / "dataset.json"
    check_regular(file, DatasetError)
    try:
        meta: Any = read_json(file, mark=True, endless=True)  # Windows' editors begin a file with a mark
    except FileNotFoundError:
        raise DatasetError(
            f'{folder}: has no dataset.json; it needs at least {{"schema": 1, "device": "..."}}. '
            f"Fix: neuralpower dataset init {folder} --device NAME"
        ) from None
    except (ValueError, OSError) as error:
        raise DatasetError(f"{file}: is not JSON ({error}); write it again") from None
    known = isinstance(meta, dict) and meta.get("schema") == SCHEMA and not isinstance(meta["schema"], bool)
    if not known or not meta.get("device"):
        raise DatasetError(f'{file}: {_lack(meta)}; write at least {{"schema": {SCHEMA}, "device": "..."}}')
    with named(file):
        check_meta(meta)
    return dict(meta)


def _lack(meta: Any) -> str:
    if not isinstance(meta, dict):
        return f"holds {shown(meta)}, but must be an object"
    if not meta.get("device"):
        return "names no device" if "device" not in meta else f"device is {shown(meta['device'])}"
    if "schema" not in meta:
        return "has no schema"
    return f"schema is {shown(meta['schema'])}, but this version reads {SCHEMA}"


@contextlib.contextmanager
def named(place: Path) -> Iterator[None]:
    """Put the place before the text of a DatasetError that is raised within."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{place}: {error}") from None


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write `dataset.json` aside, then rename it."""
    replace_file(folder / "dataset.json", json_text({"schema": SCHEMA, **meta}, indent=1) + "\n")
