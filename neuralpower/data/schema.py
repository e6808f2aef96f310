"""Required contents of a dataset's files: `dataset.json`, and the columns of its tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuralpower.data.dataset_format import SCHEMA, check_meta
from neuralpower.errors import DatasetError, unknown
from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text, read_json, shown
from neuralpower.files.paths import check_regular, is_file, is_folder

SAMPLES = ("samples_s",)  # columns of raw times
# Columns of shares and of times other than the runtime: seven digits are plenty.
SHORT = """
    runtime_median_s runtime_mean_s runtime_q25_s runtime_q75_s runtime_min_s runtime_low_s runtime_high_s
    runtime_eager_s first_call_s dispatch_s wall_s power_wall_s sentinel_s sentinel_again_s sentinel_slowdown
    steal nivcsw_per_call minflt_per_call start_s window_runtime_s window_s settle_s
""".split()
# Columns of whole numbers, also where a row that failed has none.
WHOLE = "flops bytes n block_k copies warmups attempt replicate ticks throttle_bits".split()
FEWEST_ROWS = 10  # different configurations of a group that a regressor needs
SHORTEST_S = 1e-8  # below it, as above LONGEST_S, a runtime is a broken clock or a wrong unit
KEY = ("config_id", "device_key", "software_key", "protocol_version", "replicate")  # of a measurement
READ = (  # columns of any row, besides its kind's fields
    *("dtype", "phase", "runtime_s", "power_w", "energy_j", "energy_u_rel", "dispatch_s"),
    *("sentinel_s", "sentinel_again_s", "status", "session_id", *KEY),
)


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
    """Why a `dataset.json` cannot be used, as text."""
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
