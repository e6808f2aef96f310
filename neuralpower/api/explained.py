"""`neuralpower.explain`: a trace, a profiler, or what runs within a block."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from neuralpower.api.apart import apart
from neuralpower.errors import InputError
from neuralpower.traces.explanation import Explanation, explained, predictor_for


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
