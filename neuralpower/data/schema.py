"""What a dataset's files must hold: `dataset.json`, and the columns of its tables."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.devices.spec import FLOPS, KEYS, Key
from neuralpower.dtypes import PEAKS
from neuralpower.errors import DatasetError, unknown
from neuralpower.files.json_files import json_text, not_finite, read_json
from neuralpower.files.paths import check_regular, is_file, is_folder

if TYPE_CHECKING:
    pass
from neuralpower.files.atomic import replace_file

SCHEMA = 1
SAMPLES = ("samples_s",)  # columns of raw times
SHORT = (  # columns of times beside the runtime and of shares: seven digits are plenty
    *("runtime_median_s", "runtime_mean_s", "runtime_q25_s", "runtime_q75_s", "runtime_min_s"),
    *("runtime_low_s", "runtime_high_s", "runtime_eager_s", "first_call_s", "dispatch_s", "wall_s", "power_wall_s"),
    *("sentinel_s", "sentinel_again_s", "sentinel_slowdown", "steal", "nivcsw_per_call", "minflt_per_call", "start_s"),
    *("window_runtime_s", "window_s", "settle_s"),
)
WHOLE = (  # columns of whole numbers, also where a row that failed has none
    *("flops", "bytes", "n", "block_k", "copies", "warmups"),
    *("attempt", "replicate", "ticks", "throttle_bits"),
)
SHORTEST_S, LONGEST_S = 1e-8, 1e4  # outside of these a runtime is a broken clock or a wrong unit
META = ("includes_launch", "hardware", "autograd_start_s")  # what `dataset.json` can say that changes what is learnt
HARDWARE = (  # what `dataset.json` can say of its device; numbers that are missing are not known
    *("accelerator", "cores", "l2_bytes", "llc_bytes", "peak_flops_per_s", "memory_bytes_per_s", "base_clock"),
    *("limit_w", "idle_w", "year", "lanes_per_scheduler"),
)
KEY = ("config_id", "device_key", "software_key", "protocol_version", "replicate")  # of a measurement
READ = (  # columns that say something of any row; a kind's fields stand beside them
    *("dtype", "phase", "runtime_s", "power_w", "energy_j", "energy_u_rel", "dispatch_s"),
    *("sentinel_s", "sentinel_again_s", "status", "session_id", *KEY),
)


def config_id(row: Mapping[str, Any]) -> str:
    """Name of a configuration, the same on every machine: a hash of kind and fields."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def read_meta(folder: Path) -> dict[str, Any]:
    """What `dataset.json` says; raises DatasetError where it or the folder is missing or cannot be used."""
    check_regular(folder, DatasetError)
    if is_file(folder):
        raise DatasetError(f"{folder}: is a file; a dataset is the folder of dataset.json and a table per layer kind")
    if not is_folder(folder):
        near = sorted(str(p.parent) for p in folder.parent.glob("*/dataset.json")) if is_folder(folder.parent) else []
        raise unknown("dataset", str(folder), near, DatasetError)
    file = folder / "dataset.json"
    check_regular(file, DatasetError)
    try:
        meta: Any = read_json(file, mark=True, endless=True)  # Windows' editors begin a file with a mark
    except FileNotFoundError:
        raise DatasetError(
            f'{folder}: has no dataset.json; it needs at least {{"schema": 1, "device": "..."}}'
        ) from None
    except (ValueError, OSError) as error:
        raise DatasetError(f"{file}: is no JSON ({error}); write it again") from None
    known = isinstance(meta, dict) and meta.get("schema") == SCHEMA and not isinstance(meta["schema"], bool)
    if not known or not meta.get("device"):
        given = {name: meta.get(name) for name in ("schema", "device")} if isinstance(meta, dict) else meta
        said = f"{given!r:.200}"
        raise DatasetError(f'{file}: holds {said}; needed are at least {{"schema": {SCHEMA}, "device": "..."}}')
    with named(file):
        _check_meta(meta)
        check_hardware({} if meta.get("hardware") is None else meta["hardware"])
        if any(not_finite(meta)):
            raise DatasetError("holds NaN or Infinity, which are no numbers of JSON's; leave out what is not known")
    return dict(meta)


@contextlib.contextmanager
def named(place: Path) -> Iterator[None]:
    """Put the place before what a DatasetError says that is raised within."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{place}: {error}") from None


def _check_meta(meta: Mapping[str, Any]) -> None:
    """Raise DatasetError for what would be taken for something else, or not be seen; other names are left alone."""
    _refuse_near(meta, "field", META)
    given = {name: value for name, value in meta.items() if value is not None}  # null is not known
    if not isinstance(meta["device"], str) or not meta["device"].strip() or not meta["device"].isprintable():
        raise _impossible("device", meta["device"], "a name")
    if not isinstance(given.get("includes_launch", False), bool):
        raise _impossible("includes_launch", meta["includes_launch"], "true or false")
    start_s = given.get("autograd_start_s", 0)
    if isinstance(start_s, bool) or not isinstance(start_s, (int, float)) or not 0 <= start_s < LONGEST_S:
        raise _impossible("autograd_start_s", start_s, "seconds, 0 or more")
    sessions = given.get("sessions", [])
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise _impossible("sessions", sessions, "a list of objects")
    for session in sessions:
        if not _texts(session.get("dtypes")):
            raise _impossible("dtypes of a session", session["dtypes"], "a list of names")
        if not isinstance(session.get("self_test") or {}, dict):
            raise _impossible("self_test of a session", session["self_test"], "an object")


def _texts(value: Any) -> bool:
    """Whether it is a list of texts, or not known."""
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _refuse_near(given: Collection[str], what: str, known: Collection[str]) -> None:
    """Raise DatasetError for a name that is nearly one that means something."""
    for name in given:
        if name not in known and difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.88):
            raise unknown(what, name, known, DatasetError)


def check_hardware(hardware: Any) -> None:
    """Raise DatasetError unless a device can have these values; names that mean nothing here are left alone."""
    if not isinstance(hardware, dict):
        raise _impossible("hardware", hardware, "an object")
    own = {"base_clock": Key(0.01, 1, "of the boost clock"), "lanes_per_scheduler": Key(1, 1024, "lanes")}
    rules = {**KEYS, **own, "year": Key(1970, 2100, "", whole=True)}
    _refuse_near(hardware, "value of hardware", HARDWARE)
    if not _texts(hardware.get("flags")):  # which tell one CPU from another, as its name does
        raise _impossible("flags", hardware["flags"], "a list of names")
    if not isinstance(hardware.get("name") or "", str):
        raise _impossible("name", hardware["name"], "a text")
    given = {name: value for name, value in hardware.items() if name in HARDWARE and value is not None}
    if not isinstance(given.pop("accelerator", False), bool):
        raise _impossible("accelerator", hardware["accelerator"], "true or false")
    peaks = given.pop("peak_flops_per_s", {})
    if not isinstance(peaks, dict):
        raise _impossible("peak_flops_per_s", peaks, "an object of FLOP/s by dtype")
    for dtype, peak in peaks.items():
        if dtype not in PEAKS:
            raise unknown("dtype of peak_flops_per_s", dtype, PEAKS, DatasetError)
        _check_number(f"peak_flops_per_s of {dtype}", peak, FLOPS)
    for name, value in given.items():
        _check_number(name, value, rules[name])
    if given.get("limit_w", np.inf) <= given.get("idle_w", 0):
        raise _impossible("idle_w", given["idle_w"], f"less than limit_w, which is {given['limit_w']:g}")


def _check_number(what: str, value: Any, rule: Key) -> None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (usable and rule.low <= value <= rule.high and not (rule.whole and value % 1)):  # NaN is in no range
        kind = "a whole number" if rule.whole else "a number"
        raise _impossible(what, value, f"{kind} from {rule.low:g} to {rule.high:g} {rule.unit}".rstrip())


def _impossible(what: str, value: Any, rule: str) -> DatasetError:
    return DatasetError(f"{what} is {value!r:.200}, but must be {rule}")


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write `dataset.json` aside, then rename it."""
    replace_file(folder / "dataset.json", json_text({"schema": SCHEMA, **meta}, indent=1) + "\n")
