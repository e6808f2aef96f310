"""Tables of networks that were measured elsewhere: read, with columns under the names used here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neuralpower.data.column_names import SCALES, quantity_of
from neuralpower.data.expressions import mapped
from neuralpower.data.tables import read_csv
from neuralpower.errors import InputError, first_line
from neuralpower.files.paths import check_regular

if TYPE_CHECKING:
    import pandas as pd

OTHER_NAMES = {
    "batch": "batch_size",
    "length": "seq_len",
    "name": "model",
    "network": "model",
    "gpu": "device",
    "precision": "dtype",
}
EXAMPLE = "model,batch_size,dtype,latency_ms"


def read_networks(file: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table, times in seconds, and what was assumed; imports no torch.

    Raises InputError: the file cannot be read, or lacks a column that is needed.
    """
    return _renamed(file, read_measured(file))


def read_measured(file: Path) -> pd.DataFrame:
    """The table as it stands in the file; raises InputError where it cannot be read."""
    check_regular(file)
    try:
        return read_csv(file)
    except Exception as error:  # pandas and the system have their own errors
        why = "it is a folder" if file.is_dir() else first_line(error)
        text = f"give a CSV file with columns such as {EXAMPLE}"
        raise InputError(f"{file}: cannot be read ({why}); {text}") from None


def _renamed(file: Path, table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table under the names used here, times in seconds; raises InputError for a missing column."""
    notes = []
    names = {name: OTHER_NAMES[name] for name in table.columns if name in OTHER_NAMES}
    table = table.rename(columns={old: new for old, new in names.items() if new not in table})
    if "runtime_s" not in table:
        times = [meant for name in table.columns if (meant := quantity_of(str(name)))]
        time = next((meant for meant in times if meant.column == "runtime_s"), None)
        if time is not None:
            table = mapped(table, {"runtime_s": time.expression})
            plain = time.expression in (time.given, f'"{time.given}"')
            notes.append(f"{time.given} counts as {'seconds' if plain else f'runtime_s = {time.expression}'}")
    missing = [name for name in ("model", "runtime_s") if name not in table]
    if missing:
        units = ", ".join(f"latency_{unit}" for unit in ("s", "ms", "us") if unit in SCALES["runtime_s"])
        raise InputError(
            f"{file}: column {' and '.join(missing)} missing (times: runtime_s, or {units}); "
            f"write a header such as {EXAMPLE}"
        )
    return table, notes
