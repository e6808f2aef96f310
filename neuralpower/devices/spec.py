"""Spec sheets of devices: what makers print, each number with its source, in JSON files, shipped or a user's.

A sheet is one object:

    {"schema": 1, "name": "My GPU", "class": "gpu", "vendor": "...", "year": 2024, "aliases": ["..."],
     "chip": "...",
     "values": {"peak_flops_float32": {"value": 1.95e13, "source": "its data sheet (2024)"}, ...}}

Values are SI, without a prefix; KEYS lists them. `vendor`, `year`, `aliases` and `chip` are optional. A
plain number may stand for a value whose source is the user. All peaks are dense, never with sparsity. Devices
of one `chip` differ in links, memory, clocks, enabled cores or power limit alone.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.devices.names import device_words, folded, matching
from neuralpower.dtypes import PEAK, PEAKS
from neuralpower.errors import InputError, close, unknown
from neuralpower.files.json_files import Declared, json_text, read_json, shown
from neuralpower.files.paths import check_regular, is_file

if TYPE_CHECKING:
    from neuralpower.devices.hardware import Hardware

SCHEMA = 1
CLASSES = ("gpu", "cpu", "tpu", "soc")
GIVEN = "given by the user"
ALIKE = 0.7  # share of equal letters, from which on a device is suggested for an unknown name
Names = Collection[str]


@dataclass(frozen=True)
class Value:
    """A number and where it stands, or how it follows."""

    value: float
    source: str


@dataclass(frozen=True)
class Key:
    """The rule of a value: outside of [low, high] it is an error, most often of a prefix."""

    low: float
    high: float
    unit: str
    whole: bool = False  # a count


FASTEST_FLOPS, HIGHEST_W = 1e17, 5000.0  # FLOP/s that no single device reaches, and what none draws
FLOPS = Key(1e9, FASTEST_FLOPS, "FLOP/s")
KEYS: dict[str, Key] = {
    **{PEAK + dtype: FLOPS for dtype in PEAKS},  # that of float32 is the plain pipeline's, without TF32
    "memory_bytes_per_s": Key(1e9, 1e14, "B/s"),
    "memory_bytes": Key(2**20, 1e14, "B", whole=True),
    "cores": Key(1, 1e6, "cores", whole=True),  # multiprocessors, compute units, TPU or CPU cores
    "lanes": Key(1, 1e7, "FP32 lanes", whole=True),  # of the whole device
    "schedulers": Key(1, 1e6, "warp schedulers", whole=True),  # of the whole device
    "clock_hz": Key(1e7, 2e10, "Hz"),  # boost
    "base_clock_hz": Key(1e7, 2e10, "Hz"),  # that the power limit allows in any case
    "l2_bytes": Key(2**10, 1e10, "B", whole=True),  # of the whole device; of one core of a CPU
    "llc_bytes": Key(2**10, 1e11, "B", whole=True),  # the last level, of the whole device
    "link_bytes_per_s": Key(1e8, 1e14, "B/s"),  # of one device to all its peers, in one direction
    "pcie_bytes_per_s": Key(1e8, 1e13, "B/s"),  # in one direction
    "network_bytes_per_s": Key(
        1e7, 1e13, "B/s"
    ),  # of one device's share of a server's cards, in one direction
    "limit_w": Key(0.5, HIGHEST_W, "W"),  # board power limit or TDP
    "gpu_limit_w": Key(0.5, HIGHEST_W, "W"),  # of the GPU alone, where limit_w is of its module with a CPU
    "idle_w": Key(0.01, HIGHEST_W, "W"),  # awake, between calls
    "deep_idle_w": Key(0.01, HIGHEST_W, "W"),  # long after them, without a process, in the lowest state
}
LINKS = ("link_bytes_per_s", "pcie_bytes_per_s", "network_bytes_per_s")
REQUIRED = ("memory_bytes_per_s", "cores")  # and one peak
FIELDS = ("schema", "name", "class", "vendor", "year", "aliases", "chip", "values")
REQUIRED_FIELDS = ("schema", "name", "class", "values")


@dataclass(frozen=True, kw_only=True)
class DeviceSpec(Declared):
    """One sheet; `slug` is its file's name."""

    in_json = "schema name class=device_class vendor year aliases chip values"
    schema = SCHEMA

    name: str
    slug: str
    device_class: str
    vendor: str | None
    year: int | None
    aliases: tuple[str, ...]  # names under which software reports the device
    chip: str | None = None  # its maker's code name
    values: Mapping[str, Value]

    def get(self, key: str) -> float | None:
        """The number of a key, None where the sheet has none; raises InputError for a key of no sheet."""
        if key not in KEYS:
            raise unknown("value of a spec sheet", key, KEYS)
        found = self.values.get(key)
        return None if found is None else found.value

    @property
    def peak_flops(self) -> dict[str, float]:
        """FLOP/s by element type, dense."""
        return {key.removeprefix(PEAK): v.value for key, v in self.values.items() if key.startswith(PEAK)}

    @property
    def platform(self) -> str:
        """The family of devices that it is of: cpu, or its maker's."""
        return "cpu" if self.device_class == "cpu" else (self.vendor or "accelerator").lower()

    def hardware(self) -> Hardware:
        """The hardware for the layers' special terms."""
        from neuralpower.devices.hardware import Hardware

        default = Hardware()
        llc, l2, base, boost = map(self.get, ("llc_bytes", "l2_bytes", "base_clock_hz", "clock_hz"))
        lanes, schedulers = self.get("lanes"), self.get("schedulers")
        links: dict[str, Any] = {name: self.get(name) for name in LINKS}
        return Hardware(
            cores=int(self.get("cores") or default.cores),
            l2_bytes=int(l2 or llc or default.l2_bytes),
            llc_bytes=int(llc or l2 or default.llc_bytes),
            platform=self.platform,
            peak_flops_per_s=self.peak_flops,
            memory_bytes_per_s=self.get("memory_bytes_per_s") or default.memory_bytes_per_s,
            base_clock=base / boost if base and boost else default.base_clock,
            limit_w=self.get("limit_w"),
            gpu_limit_w=self.get("gpu_limit_w"),
            idle_w=self.get("idle_w"),
            deep_idle_w=self.get("deep_idle_w"),
            year=self.year,
            clock_hz=boost,
            lanes_per_scheduler=lanes / schedulers if lanes and schedulers else None,
            **links,
        )


def known_specs() -> dict[str, Path]:
    """Shipped sheets by slug."""
    return dict(_shipped())


@functools.cache
def _shipped() -> dict[str, Path]:
    folder = Path(str(importlib.resources.files("neuralpower"))) / "devices" / "specs"
    return {file.stem: file for file in sorted(folder.glob("*.json"))}


@functools.cache
def specs_of(name: str) -> tuple[str, ...]:
    """The slugs of the shipped sheets that a name in any usual spelling may be of."""
    return tuple(matching(name, labels_of_specs()))


def find_spec(name: str) -> DeviceSpec:
    """The shipped sheet of a device, by its slug, name or alias in any usual spelling ("h100", "RTX4090").

    Raises InputError where none fits, and where several do, which it lists.
    """
    labels, found = labels_of_specs(), specs_of(name)
    if len(found) == 1:
        return read_spec(known_specs()[found[0]])
    if found:
        raise InputError(f"device {name!r} may be {', '.join(found)}; choose one of them")
    near = _near(name, labels)
    raise InputError(
        f"unknown device {name!r}: "
        + (
            f"did you mean {', '.join(near)}?"
            if near
            else f"`neuralpower devices --specs` lists all {len(labels)}; measure another by `neuralpower "
            "collect-data` on it, or describe it by `neuralpower dataset init FOLDER --device-spec FILE`"
        )
    )


def _near(name: str, labels: Mapping[str, Names]) -> list[str]:
    """The sheets whose names are spelled alike, without makers' words or with them, nearest first."""
    found: list[str] = []
    spelled: tuple[Callable[[str], str], ...] = (lambda label: "".join(device_words(label)), folded)
    for way in spelled:
        ways = {way(label): slug for slug, some in labels.items() for label in (slug, *some)}
        found += [ways[label] for label in close(way(name), ways, ALIKE)]
    return list(dict.fromkeys(found))[:4]


@functools.cache
def chips_of_specs() -> dict[str, str | None]:
    """The chip of each shipped sheet, by slug."""
    return {slug: json.loads(path.read_bytes()).get("chip") for slug, path in known_specs().items()}


@functools.cache
def labels_of_specs() -> dict[str, tuple[str, ...]]:
    """Name and aliases of each shipped sheet, by slug."""
    sheets = ((slug, json.loads(path.read_bytes())) for slug, path in known_specs().items())
    return {slug: (sheet["name"], *sheet["aliases"]) for slug, sheet in sheets}


def read_spec(path: str | Path) -> DeviceSpec:
    """The sheet in a file; raises InputError (unreadable, no JSON, another schema, a broken rule)."""
    path = Path(path)
    check_regular(path)
    try:
        data = read_json(path, mark=True, endless=True)  # Windows' editors begin a file with a mark
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); choose another file") from None
    except ValueError as error:
        reason = f" ({error})" if str(error).startswith(("it ", '"')) else ""  # besides a parser's text
        hint = "give a spec sheet, as `neuralpower devices --spec nvidia-t4 --json` prints one"
        raise InputError(f"{path}: is not JSON{reason}; {hint}") from None
    return _Reader(path).spec(data)


def blank_sheet(name: str) -> str:
    """The file of a sheet to fill in, whose numbers are null."""
    keys = (PEAK + "float32", PEAK + "float16", *REQUIRED, "memory_bytes")
    sheet = {"schema": SCHEMA, "name": name, "class": "gpu", "vendor": None, "values": dict.fromkeys(keys)}
    return json_text(sheet, indent=1)


def spec_of(name: str) -> DeviceSpec:
    """A user's sheet where the name is a file's, else the shipped one; raises InputError."""
    return read_spec(name) if name.endswith(".json") or is_file(name) else find_spec(name)


def known_spec(name: str) -> DeviceSpec | None:
    """The shipped sheet of a device under the very name that software reports; None where there is none."""
    wanted = folded(name)
    for slug, labels in labels_of_specs().items():
        if wanted in map(folded, (slug, *labels)):
            return read_spec(known_specs()[slug])
    return None


def known_hardware(name: str) -> Hardware | None:
    """Hardware of the shipped sheet of that name; None where there is none."""
    spec = known_spec(name)
    return None if spec is None else spec.hardware()


@dataclass(frozen=True)
class _Reader:
    """Holds JSON to the rules; every refusal names the file."""

    path: Path

    def spec(self, data: Any) -> DeviceSpec:
        if not isinstance(data, dict):
            raise self.refusal("the sheet", data, "an object with schema, name, class and values")
        if "schema" in data and (data["schema"] != SCHEMA or isinstance(data["schema"], bool)):
            raise self.refusal("schema", data["schema"], f"{SCHEMA}, the one that this version reads")
        self.names(data, "field", FIELDS, REQUIRED_FIELDS)
        if data["class"] not in CLASSES:
            raise unknown(f"class in {self.path}", data["class"], CLASSES)
        return DeviceSpec(
            name=self.text("name", data["name"]),
            slug=self.path.stem,
            device_class=data["class"],
            vendor=None if data.get("vendor") is None else self.text("vendor", data["vendor"]),
            year=self.year(data.get("year")),
            aliases=self.aliases(data.get("aliases", [])),
            chip=None if data.get("chip") is None else self.text("chip", data["chip"]),
            values=self.values(data["values"]),
        )

    def names(self, data: dict[str, Any], what: str, known: Names, required: Names, where: str = "") -> None:
        for name in data:
            if name not in known:
                raise unknown(f"{what} in {self.path}", name, known)
        for name in required:
            if name not in data:
                raise InputError(f"{self.path}: has no {name!r}{where}, which every spec sheet needs; add it")

    def values(self, data: Any) -> dict[str, Value]:
        if not isinstance(data, dict):
            raise self.refusal("values", data, "an object of numbers with their sources")
        self.names(data, "value", KEYS, REQUIRED, " among its values")
        if not any(key.startswith(PEAK) for key in data):
            peaks = ", ".join(key for key in KEYS if key.startswith(PEAK))
            needed = f"has no peak among its values, but needs one at least; add one of {peaks}"
            raise InputError(f"{self.path}: {needed}")
        values = {key: self.value(key, data[key]) for key in KEYS if key in data}
        number = {key: value.value for key, value in values.items()}
        idle, limit = number.get("idle_w", 0.0), number.get("limit_w", math.inf)
        if idle >= limit:
            raise self.refusal("idle_w", idle, f"less than limit_w, which is {limit:g} W; correct one")
        base, boost = number.get("base_clock_hz", 0.0), number.get("clock_hz", math.inf)
        if base > boost:
            raise self.refusal("base_clock_hz", base, f"at most clock_hz, which is {boost:g} Hz; correct one")
        return values

    def value(self, key: str, data: Any) -> Value:
        if not isinstance(data, dict):
            return Value(self.number(key, data), GIVEN)
        for name in data:
            if name not in ("value", "source"):
                raise unknown(f"field of {key} in {self.path}", name, ("value", "source"))
        place, source = f"{self.path}: {key} has no", data.get("source")
        if "value" not in data:
            raise InputError(f'{place} \'value\'; write {{"value": NUMBER, "source": TEXT}}')
        if not isinstance(source, str) or not source.strip():
            raise InputError(f"{place} source; write the document or the arithmetic it comes from")
        return Value(self.number(key, data["value"]), source)

    def number(self, key: str, data: Any) -> float:
        rule = KEYS[key]
        if isinstance(data, bool) or not isinstance(data, (int, float)):
            raise self.refusal(key, data, f"a number, in {rule.unit}")
        if not rule.low <= data <= rule.high:  # zero, NaN and Infinity, too
            bounds = f"between {rule.low:g} and {rule.high:g} {rule.unit}"
            raise self.refusal(key, data, f"{bounds}; give it without a prefix")
        if rule.whole and data != int(data):
            raise self.refusal(key, data, "a whole number")
        return float(data)

    def text(self, name: str, data: Any) -> str:
        if not isinstance(data, str) or not data.strip():
            raise self.refusal(name, data, "a text that is not empty")
        return data

    def year(self, data: Any) -> int | None:
        if data is None or (type(data) is int and 1970 <= data <= 2100):
            return data
        rule = "the year of the device's release, 1970 to 2100; correct or remove it"
        raise self.refusal("year", data, rule)

    def aliases(self, data: Any) -> tuple[str, ...]:
        if not isinstance(data, list):
            raise self.refusal("aliases", data, "a list of names")
        return tuple(self.text("an alias", alias) for alias in data)

    def refusal(self, what: str, data: Any, rule: str) -> InputError:
        return InputError(f"{self.path}: {what} is {shown(data)}, but must be {rule}")
