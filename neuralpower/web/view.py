"""The view that a query requests, the commands that give the same answer, and files that a browser sends.

All that a page shows follows from its query, so that a link opens the same view.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from neuralpower.ask import texts, words
from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError, one_line
from neuralpower.files.json_files import read_json
from neuralpower.prediction.costs.footprint import regions

MOST_DEVICES = 4
RANKS = (1, 2, 4, 8)
PHASES = words.FITTED_PHASES
LANGUAGE = ("prefill", "decode", "generate")
DTYPES = ("float32", "bfloat16", "float16")
MOST = {
    "batch": 4096,
    "context": 2**20,
    "new": 4096,
    "steps": 1000,
    "frames": 1000,
    "input": 2**17,
    "output": 2**14,
}
PRICE = re.compile(r"\$?(\d{1,6}(?:\.\d{1,6})?)(?:/h)?")


@dataclass(frozen=True)
class Takes:
    """What a model takes of the controls."""

    decodes: bool = True  # token after token, with a cache
    reads: bool = True  # tokens, or steps of another sequence
    draws: bool = False  # images or films, in steps of a pipeline of diffusion
    positions: float = float("inf")  # most tokens


@dataclass(frozen=True)
class View:
    """A model on one to four devices, and the sizes of a pass; None leaves a size to the model."""

    model: str = "llama-3.1-8b"
    devices: tuple[str, ...] = ("nvidia-h100-sxm5-80gb",)
    prices: tuple[float | None, ...] = (None,)  # of each device for an hour
    phase: str = "decode"
    batch: int = 8
    context: int | None = 4096  # tokens: in the cache, of the prompt, or of each sample
    new: int = 256  # tokens that a generation makes
    shape: str = ""  # of an input's sample in forward and training passes; "": the model's own
    resolution: str = ""  # of images and films; "": the pipeline's own
    steps: int | None = None
    frames: int | None = None  # of a film
    dtype: str = ""  # "": as published
    weights: str = ""  # "": as the checkpoint's
    ranks: int = 1  # tensor ranks, each a device
    input: int = 1024  # tokens of a request's prompt
    output: int = 256  # tokens of its answer
    region: str = ""  # whose grid the carbon is of; "": none is shown

    @property
    def speaks(self) -> bool:
        """Whether it is a phase of a language model."""
        return self.phase in LANGUAGE

    @property
    def query(self) -> str:
        """The query of its address."""
        pairs: list[tuple[str, Any]] = [("model", self.model)]
        for device, price in zip(self.devices, self.prices, strict=True):
            pairs += [("device", device), ("price", "" if price is None else f"{price:g}")]
        for name in (
            "phase",
            "batch",
            "context",
            "new",
            "shape",
            "resolution",
            "steps",
            "frames",
            "dtype",
            "weights",
            "ranks",
            "input",
            "output",
            "region",
        ):
            value = getattr(self, name)
            pairs.append((name, "" if value is None else value))
        return urlencode(pairs)

    def alone(self, device: str) -> View:
        """The same on one of its devices."""
        at = self.devices.index(device)
        return replace(self, devices=(device,), prices=(self.prices[at],))

    def fitted(self, takes: Takes) -> View:
        """The same for what a model takes: a pass where it does not decode, without what it does not read."""
        speaks = self.speaks and takes.decodes
        known: dict[str, Any] = {"phase": self.phase if speaks or not self.speaks else "forward"}
        if takes.draws:
            return replace(self, phase="forward", context=None, shape="")
        size = texts.resolution(self.resolution or None)
        if size is not None and not takes.reads and not self.shape:
            known["shape"] = f"3x{size[1]}x{size[0]}"
        reads = takes.reads and (speaks or not (self.speaks or self.shape))
        made = {"generate": self.new, "decode": 1}.get(self.phase, 0)
        most = max(takes.positions - made, 1) if reads else None
        context = None if most is None or self.context is None else int(min(self.context, most))
        return replace(self, context=context, resolution="", steps=None, frames=None, **known)

    def options(self, device: str, batch: int | None = None) -> dict[str, Any]:
        """The options of `predict` on a device."""
        tokens = {"decode": "context", "prefill": "prompt", "generate": "prompt"}.get(self.phase, "seq_len")
        found: dict[str, Any] = {"phase": self.phase, "batch_size": batch or self.batch, tokens: self.context}
        found |= {"new_tokens": self.new} if self.phase == "generate" else {}
        found |= {"input_shape": self.shape or None} if not self.speaks else {}
        found |= {"resolution": self.resolution or None, "steps": self.steps, "frames": self.frames}
        found |= {"dtype": self.dtype or None, "weights": self.weights or None}
        if self.ranks > 1:
            return {**found, "devices": f"{self.ranks}x{device}", "tensor_parallel": self.ranks}
        return {**found, "device": device}

    def commands(self, called: str) -> list[str]:
        """The command of each device that prints the same answer; `called`: the model as a shell reads it."""
        return [" ".join(self._command(called, *one)) for one in zip(self.devices, self.prices, strict=True)]

    def _command(self, called: str, device: str, price: float | None) -> Iterator[str]:
        yield "neuralpower predict"
        yield shlex.quote(called)
        for name, value in self.options(device).items():
            if value is not None:
                yield f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        if price is not None:
            yield f"--price {price:g}/h"
        if self.region:
            yield f"--region {self.region}"

    def traffic_command(self, called: str, device: str, rate: float) -> str:
        """The command that serves requests at a rate, and draws the curve."""
        return f"neuralpower {shlex.join(self.traffic_arguments(called, device, rate))}"

    def traffic_arguments(self, called: str, device: str, rate: float) -> list[str]:
        """The arguments of that command."""
        parts = ["traffic", called, "--device", self.place(device)]
        for name in ("dtype", "weights"):
            parts += [f"--{name}", getattr(self, name)] if getattr(self, name) else []
        parts += ["--input", str(self.input), "--output", str(self.output)]
        parts += ["--rate", f"{rate:.3g}", "--curve", "auto"]
        price = self.prices[self.devices.index(device)]
        return [*parts, *([] if price is None else ["--price", f"{price:g}/h"])]

    def place(self, device: str) -> str:
        """A device, or as many as there are ranks."""
        return f"{self.ranks}x{device}" if self.ranks > 1 else device


def view_of(query: Sequence[tuple[str, str]]) -> View:
    """The view that a query asks for; raises InputError for a value that is none of its control's.

    Names that no control has are ignored, as browsers and mail programs add some.
    """
    several: dict[str, list[str]] = {}
    for name, value in query:
        several.setdefault(name, []).append(value.strip())
    last = {name: values[-1] for name, values in several.items()}
    if not any(name in several for name in ("model", "device", "phase")):
        return View()
    devices, prices = _devices(several.get("device", []), several.get("price", []))
    phase = _word("phase", last.get("phase") or View.phase, PHASES)
    whole = {name: _whole(name, last.get(name, "")) for name in MOST}
    model = last.get("model") or View.model
    if len(model) > 500:
        raise InputError(f"model {model[:40]!r}...: {len(model)} letters; give a name of at most 500")
    shape, resolution = last.get("shape", ""), last.get("resolution", "")
    texts.shape(shape or None)
    texts.resolution(resolution or None)
    return View(
        model=model,
        devices=devices,
        prices=prices,
        phase=phase,
        batch=whole["batch"] or 1,
        context=None if shape and phase not in LANGUAGE else whole["context"],
        resolution=resolution,
        steps=whole["steps"],
        frames=whole["frames"],
        new=whole["new"] or View.new,
        shape=shape,
        dtype=_word("dtype", last.get("dtype", ""), ("", *DTYPES)),
        weights=_word("weights", last.get("weights", ""), ("", *words.WEIGHTS)),
        ranks=int(_word("ranks", last.get("ranks") or "1", tuple(map(str, RANKS)))),
        input=whole["input"] or View.input,
        output=whole["output"] or View.output,
        region=_word("region", last.get("region", ""), ("", *regions())),
    )


def _devices(names: Sequence[str], prices: Sequence[str]) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    found: dict[str, float | None] = {}
    for at, name in enumerate(names):
        if name:
            found[find_spec(name).slug] = _price(prices[at] if at < len(prices) else "")
    if len(found) > MOST_DEVICES:
        raise InputError(f"{len(found)} devices: a page compares {MOST_DEVICES} at most; leave some out")
    if not found:
        return View.devices, (_price(prices[0]) if prices else None,)
    return tuple(found), tuple(found.values())


def _price(text: str) -> float | None:
    if not text:
        return None
    match = PRICE.fullmatch(text)
    if match is None or not float(match[1]):
        raise InputError(f"price {text[:40]!r}: what the device costs for an hour, above 0; write 2.49")
    return float(match[1])


def _whole(name: str, text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"\d{1,9}", text) or not 1 <= int(text) <= MOST[name]:
        raise InputError(f"{name} {text[:40]!r}: a whole number from 1 to {MOST[name]:,}")
    return int(text)


def _word(name: str, text: str, known: Sequence[str]) -> str:
    if text not in known:
        listed = ", ".join(word for word in known if word)
        raise InputError(f"{name} {text[:40]!r}: choose one of {listed}")
    return text


def pairs_of(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A query from names and values, or lists of them."""
    return [(n, str(v)) for n, vs in values.items() for v in (vs if isinstance(vs, (list, tuple)) else [vs])]


# Files that a browser sends: a configuration or an ONNX file, bounded, read as data, and gone at the end.

PREFIX = "upload:"
MOST_BYTES = {".json": 4 * 2**20, ".onnx": 256 * 2**20}
MOST_FILES = 16  # at once; the oldest go
NAME = re.compile(r"upload:([0-9a-f]{16})/([\w. -]{1,80})")


class Uploads:
    """A folder of its own, with one folder for each file."""

    def __enter__(self) -> Uploads:
        self.folder = Path(tempfile.mkdtemp(prefix="neuralpower-web-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, name: str, content: bytes) -> str:
        """Keep a file; what a view calls it. Raises InputError for anything but a model's data."""
        plain = re.sub(r"[^\w.-]", "_", Path(name.replace("\\", "/")).name)[-80:]
        ending = checked_ending(plain)
        check_size(plain, len(content))
        key = hashlib.blake2b(content, digest_size=8).hexdigest()
        called = "config.json" if ending == ".json" else plain
        place = self.folder / key
        place.mkdir(exist_ok=True)
        file = place / called
        file.write_bytes(content)
        if ending == ".json":
            try:
                values = read_json(file)
            except (ValueError, OSError) as error:
                shutil.rmtree(place, ignore_errors=True)
                raise InputError(
                    f"{plain}: is not JSON ({one_line(error)}); upload a model's config.json"
                ) from None
            if not isinstance(values, dict):
                shutil.rmtree(place, ignore_errors=True)
                raise InputError(f"{plain}: is not a JSON object; upload a model's config.json")
        self._prune()
        return f"{PREFIX}{key}/{called}"

    def path(self, model: str) -> Path:
        """The file of an upload; raises InputError for one that is not here."""
        match = NAME.fullmatch(model.partition("?")[0])
        file = None if match is None else self.folder / match[1] / match[2]
        if file is None or not file.is_file():
            raise InputError(f"{model[:100]}: this server does not have that file; upload it again")
        return file

    def _prune(self) -> None:
        """Remove the oldest files."""
        places = sorted(self.folder.iterdir(), key=lambda place: place.stat().st_mtime_ns)
        for place in places[:-MOST_FILES]:
            shutil.rmtree(place, ignore_errors=True)


def checked_ending(name: str) -> str:
    """The ending of a file's name; raises InputError for any other than a model's data has."""
    ending = Path(name).suffix.lower()
    if ending not in MOST_BYTES:
        raise InputError(
            f"{name[:80]}: upload a config.json or an .onnx file; code is never uploaded: start the server "
            "with --trust-code, and write its path as the model"
        )
    return ending


def check_size(name: str, size: int) -> None:
    """Raise InputError for a file that is too large."""
    most = MOST_BYTES[checked_ending(name)]
    if size > most:
        raise InputError(
            f"{name[:80]}: {size / 2**20:,.0f} MiB; at most {most // 2**20} MiB are taken. Give its path to "
            "neuralpower predict"
        )
