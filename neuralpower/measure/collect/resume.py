"""What a collection resumes: the state that an earlier run left, and the commit that measures."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.data.schema import read_meta
from neuralpower.devices.host import unlike
from neuralpower.errors import DatasetError, ModelError
from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text, read_json
from neuralpower.measure.collect.process import Executor
from neuralpower.measure.collect.schedule import PROTOCOL_VERSION, RUNTIME, software_key
from neuralpower.networks.sources.base import check_model
from neuralpower.version import __version__

SOURCES = Path(__file__).parents[3]


def checkout(folder: Path = SOURCES) -> dict[str, str | bool | None]:
    """`git_sha`, and `git_dirty` where tracked files differ from it; both None outside a checkout."""
    sha = _git(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no") if sha else None
    return {"git_sha": sha, "git_dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git; None where there is no git, or it refuses the folder."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


# ---- State of an earlier run of a collection ----


UNFINISHED = 2  # starts without a result that make a configuration a suspect, and alone the culprit


def row_key(row: Mapping[str, Any]) -> tuple[str, int]:
    """The key of a row inside one dataset."""
    return row["config_id"], int(row.get("replicate") or 0)


@dataclass(frozen=True)
class Unfinished:
    """Configurations that the machine went down with."""

    suspects: set[tuple[str, int]]  # to be measured alone
    culprits: set[tuple[str, int]]  # not to be measured any more
    power_culprits: set[tuple[str, int]]  # whose power is not; power is measured alone in any case


def unfinished(records: Sequence[Mapping[str, Any]], up: str | None) -> Unfinished:
    """A journal's starts without a result that ended with the machine; `up`: the answer of `up_since` now.

    A collection that was killed, hung up or stopped while its machine stayed up says nothing about its
    configurations. A configuration that ends its own process is found by the collection that measures it.
    """
    open_: set[tuple[str, int]] = set()
    power: set[tuple[str, int]] = set()
    ended: Counter[tuple[str, int]] = Counter()
    ended_alone: Counter[tuple[str, int]] = Counter()
    ended_powered: Counter[tuple[str, int]] = Counter()
    before: str | None = None
    for record in (*records, {"type": "session", "up": up}):  # the last one may have been killed
        kind = record.get("type")
        if kind == "result":
            open_.discard(row_key(record["row"]))
            power.discard(row_key(record["row"]))
        elif kind == "event" and record["event"] != "meter_lost":
            open_.clear()
            power.clear()
        elif kind == "session":
            now = record.get("up")
            if None not in (before, now) and before != now:
                ended.update(open_)
                ended_alone.update(open_ if len(open_) == 1 else ())
                ended_powered.update(power)
            open_, power, before = set(), set(), now
        elif kind == "start":
            begun = open_ if record["tier"] == RUNTIME else power
            begun |= {(name, replicate) for name, replicate in record["tasks"]}
    suspects, culprits, power_culprits = (
        {key for key, count in counts.items() if count >= UNFINISHED}
        for counts in (ended, ended_alone, ended_powered)
    )
    return Unfinished(suspects, culprits, power_culprits)


def sessions(meta: dict[str, Any], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sessions that are described already, then those of the journal, each once."""
    known = [*meta.get("sessions", []), *(record for record in records if record.get("type") == "session")]
    known = [{name: value for name, value in session.items() if name != "type"} for session in known]
    return list({str(session.get("session_id", session)): session for session in known}.values())


def description(folder: Path, opened: Mapping[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`dataset.json`, new or kept; raises DatasetError for another device, protocol or software."""
    hardware, libraries = opened["hardware"], opened["versions"]
    if not (folder / "dataset.json").exists():
        return {
            "device": hardware["name"],
            "hardware": hardware,
            "protocol_version": PROTOCOL_VERSION,
            "power_reason": opened["power_reason"],
        }
    meta = read_meta(folder)
    kept = meta.get("hardware") or {}
    apart = unlike({**kept, "name": meta["device"]}, hardware, by_flags=False)
    if not apart and kept.get("cores") != hardware.get("cores"):  # where one of them does not say
        apart = [f"cores {kept.get('cores')} there, {hardware.get('cores')} here"]
    if apart:
        raise DatasetError(
            f"{folder}: holds measurements of another device, {meta['device']!r} "
            f"({'; '.join(apart)}); choose another --out"
        )
    for session in (meta, *sessions(meta, records)[-1:]):
        protocol = session.get("protocol_version", PROTOCOL_VERSION)
        if protocol != PROTOCOL_VERSION:
            raise DatasetError(
                f"{folder}: was measured by protocol {protocol}, but this is {PROTOCOL_VERSION}; "
                "choose another --out"
            )
        if "torch" in session and software_key(kept, session) != software_key(hardware, libraries):
            raise DatasetError(
                f"{folder}: was measured with torch {session['torch']} and another driver, "
                f"but this is torch {libraries.get('torch')}; choose another --out"
            )
    return {name: value for name, value in meta.items() if name != "schema"}


def planned(folder: Path, plan_key: Mapping[str, Any], executor: Executor) -> list[dict[str, Any]]:
    """The plan, from the folder where an interrupted collection with the same settings left it."""
    file = folder / "plan.json"
    key = json.loads(json.dumps(plan_key))
    if file.exists():
        try:
            kept = read_json(file)
        except (ValueError, OSError):
            kept = {}
        same = isinstance(kept, dict) and kept.get("key") == key and kept.get("version") == __version__
        if same and isinstance(kept.get("plan"), list):
            _check_trusted(file, kept["plan"], plan_key.get("models") or ())
            return list(kept["plan"])
    answer = executor.ask({"do": "plan", **key})
    replace_file(file, json_text({"key": key, "version": __version__, "plan": answer["plan"]}))
    return list(answer["plan"])


def _check_trusted(file: Path, plan: Sequence[Mapping[str, Any]], typed: Sequence[str]) -> None:
    """Raise DatasetError where a kept plan names a model that would run code and that nobody has typed."""
    for number, item in enumerate(plan, 1):
        model = str(item["row"].get("model", ""))
        if model not in typed:
            try:
                check_model(model, f"{file}: task {number}")
            except ModelError as error:
                raise DatasetError(
                    f"{str(error).partition('; if you')[0]}; remove {file.name}, it is made again"
                ) from None
