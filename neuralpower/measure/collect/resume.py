"""What an earlier run of a collection left behind: whose dataset it is, its plan, its sessions, what it died of."""

from __future__ import annotations

import json
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
from neuralpower.measure.collect.keys import PROTOCOL_VERSION, software_key
from neuralpower.measure.collect.recover import Executor
from neuralpower.measure.collect.schedule import RUNTIME
from neuralpower.networks.trust import check_model
from neuralpower.version import __version__

UNFINISHED = 2  # starts without a result that make a configuration a suspect, and alone the culprit


def row_key(row: Mapping[str, Any]) -> tuple[str, int]:
    """What a row is known by inside one dataset."""
    return row["config_id"], int(row.get("replicate") or 0)


@dataclass(frozen=True)
class Unfinished:
    """Configurations that the machine went down with: to be measured alone, and not any more."""

    suspects: set[tuple[str, int]]
    culprits: set[tuple[str, int]]
    power_culprits: set[tuple[str, int]]  # whose power did, which is measured alone in any case


def unfinished(records: Sequence[Mapping[str, Any]], up: str | None) -> Unfinished:
    """Starts without a result, in a journal, that ended with the machine; `up` is what `up_since` says now.

    A collection that was killed or hung up while its machine stayed up says nothing of what it was measuring, nor does one that
    was stopped. A configuration that ends its own process is found by the collection that measures it.
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
    fresh = (
        {k: v for k, v in record.items() if k != "type"}
        for record in records
        if record.get("type") == "session"
    )
    everything = (*meta.get("sessions", []), *fresh)
    return list({str(session.get("session_id", session)): session for session in everything}.values())


def description(folder: Path, opened: Mapping[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `dataset.json` is to say, new or as it stands; raises DatasetError for another device's, protocol's or software's."""
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
            f"{folder}: holds measurements of another device, {meta['device']!r} ({'; '.join(apart)}); choose another --out"
        )
    for session in (meta, *sessions(meta, records)[-1:]):
        protocol = session.get("protocol_version", PROTOCOL_VERSION)
        if protocol != PROTOCOL_VERSION:
            raise DatasetError(
                f"{folder}: was measured by protocol {protocol}, this is {PROTOCOL_VERSION}; choose another --out"
            )
        if "torch" in session and software_key(kept, session) != software_key(hardware, libraries):
            raise DatasetError(
                f"{folder}: was measured with torch {session['torch']} and the driver of that time, this is torch "
                f"{libraries.get('torch')}; choose another --out"
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
    """Raise DatasetError where a kept plan names a model that would run code, and that is none of those that were typed."""
    for number, item in enumerate(plan, 1):
        model = str(item["row"].get("model", ""))
        if model not in typed:
            try:
                check_model(model, f"{file}: task {number}")
            except ModelError as error:
                raise DatasetError(
                    f"{str(error).partition('; if you')[0]}; remove {file.name}, it is made again"
                ) from None
