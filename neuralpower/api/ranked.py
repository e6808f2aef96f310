"""`neuralpower.rank` and `explain`: the devices that a model runs on, and where a trace's time went."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from neuralpower.api.profiled import apart
from neuralpower.ask import texts
from neuralpower.ask.spread import Given
from neuralpower.devices.spec import known_spec, known_specs
from neuralpower.errors import InputError
from neuralpower.files.stages import stage
from neuralpower.learn.files.predictor_files import known_predictors, readable
from neuralpower.learn.files.predictor_lookup import chosen, load
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.settings import set_to
from neuralpower.networks.libraries.callables import as_network
from neuralpower.prediction.costs.footprint import terms_in
from neuralpower.prediction.explore.rank import RATE, Ranking, rank
from neuralpower.prediction.request import Request, dtype_for, phase_in, request_of, run_of
from neuralpower.traces.explanation import Explanation, explained, predictor_for


@apart
def asked_rank(model: Any, devices: Any, options: Given) -> Ranking:
    """Rank the named devices, or all that are known; raises InputError and ModelError."""
    network, terms = as_network(model), terms_in(options)
    phase, first = phase_in(options).name, list[Request]()

    def request(predictor: Predictor) -> Request:
        run = run_of(options.get("run"), phase, predictor.platform)
        dtype, _ = dtype_for(network, options.get("dtype"), predictor, run)
        if not first:
            first.append(request_of(network, options, dtype=dtype))
        return replace(first[0], dtype=dtype)

    def asked(name: str, make: Callable[[], Predictor]) -> Predictor:
        stage(f"asking {name}")
        return set_to(make(), options.get("power_limit"), options.get("clock"))

    known = {name: partial(asked, name, make) for name, make in _devices(devices).items()}
    by = str(options.get("by") or RATE)
    found = rank(_name(network), known, request, by, terms)
    return replace(found, warnings=terms.warnings)


def _devices(named: Any) -> dict[str, Callable[[], Predictor]]:
    """The named devices; else all with a sheet, and all with a predictor of their own."""
    if named is not None:
        several: Iterable[Any] = texts.names(named, "device") or () if isinstance(named, str) else named
        if isinstance(named, Path):
            several = [named]
        return {str(name): partial(chosen, None, name) for name in several}
    found: dict[str, Callable[[], Predictor]] = {slug: partial(chosen, None, slug) for slug in known_specs()}
    for name, one in readable(known_predictors())[0].items():
        if one.hardware is not None and known_spec(one.device) is None:
            found[name] = partial(load, name)
    return found


def _name(network: Any) -> str:
    return str(network) if isinstance(network, (str, Path)) else type(network).__name__


# `neuralpower.explain`: a trace, a profiler, or what runs within a block.


@apart
def explained_trace(source: Any, device: Any, predictor: Any, against: Any, capture: Any) -> Explanation:
    """The explanation of a trace's file, or of a profiler that has run; raises InputError."""
    others = [None if one is None else Path(one) for one in (against, capture)]

    def of(path: Path) -> Explanation:
        return explained(path, lambda one: predictor_for(one, device, predictor), *others)

    if isinstance(source, (str, Path)):
        return of(Path(source))
    if not hasattr(source, "export_chrome_trace"):
        raise InputError(f"{source!r:.60}: neither a file of a trace nor a torch.profiler.profile; give one")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        try:
            source.export_chrome_trace(str(file))
        except (RuntimeError, AssertionError, AttributeError) as error:
            text = " ".join(str(error).split())[:200]
            raise InputError(f"the profiler has no trace ({text}); end its with block first") from None
        return of(file)


class Explaining:
    """A block whose run is recorded and explained: `explanation` has the result, which is also printed."""

    explanation: Explanation | None = None

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __enter__(self) -> Explaining:
        from torch.profiler import profile

        profiler: Any = profile(record_shapes=True)
        self._profiler = profiler.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profiler.__exit__(kind, error, traceback)
        if kind is None:
            self.explanation = explained_trace(self._profiler, **self._options)
            print(self.explanation)
