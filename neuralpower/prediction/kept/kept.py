"""Traces of named networks that are kept on the disk, so that torch is not needed for another device or size.

The key of a pass holds the model with its files, versions, sizes, types, phase and how it is trained. It does
not hold the device, but for its family, whose automatic casts differ, and for a step its platform.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.errors import NeuralPowerError
from neuralpower.files.cache import TRACES, cache_folder, keep, key_of, recall
from neuralpower.files.stages import stage
from neuralpower.networks.names.sameness import is_current, loaded, network_of
from neuralpower.networks.passes import Pass
from neuralpower.prediction.case import devices_part
from neuralpower.prediction.kept.kept_sizes import LENGTHS, Size, at, sizes_to_follow, solved
from neuralpower.prediction.kept.plain_passes import packed, plain, recorded_in, unpacked
from neuralpower.prediction.request import Request
from neuralpower.trace.followed import Recorded
from neuralpower.trace.question import Question

if TYPE_CHECKING:
    from neuralpower.networks.source import Source

SIZES = ("batch_size", "seq_len", "context", "prompt")  # options that a function leaves open
# CPU seconds for further sizes, after the first question, where nobody would notice, and after another one
SOON_S, LATER_S = 0.5, 30.0
PRICED = ("run", "weights", "devices", "nodes", "micro_batches")  # options that a recorded pass leaves open


@dataclass(frozen=True)
class KeptNetwork:
    """A named network, and the folder that keeps what is known of it."""

    folder: Path
    question: Mapping[str, Any]
    later: list[Callable[[], None]] | None = None  # receives what is kept once the answer has been shown

    @classmethod
    def of(cls, model: Any, later: list[Callable[[], None]] | None = None) -> KeptNetwork | None:
        """The network of a name; None where nothing is kept: switched off, code, or fetched."""
        folder = cache_folder() if isinstance(model, str) else None
        question = None if folder is None else network_of(model)
        return None if folder is None or question is None else cls(folder, question, later)

    def facts(self, shape: Any) -> dict[str, Any] | None:
        """Its name, and the batch size that its inputs have by default; None where they are not kept."""
        return self._current(self._facts_key(shape))

    def keep_facts(self, source: Source, shape: Any) -> None:
        facts = {"name": str(source.name), "batch": source.batch_size(None, shape), "loaded": loaded()}
        keep(self.folder, self._facts_key(shape), facts, TRACES)

    def _facts_key(self, shape: Any) -> str:
        return key_of({**self.question, "facts": str(shape)})

    def recorded(self, request: Request, question: Question) -> Recorded | None:
        """What was recorded of this pass, or follows from others; None where neither is kept."""
        key = self._key(request, question)
        if key is None:
            return None
        found = self._current(key)
        if found is not None:
            return recorded_in(unpacked(found) or {})
        size = size_of(request)
        found = None if size is None else self._current(self._function_key(request, question, size))
        function = None if found is None else unpacked(found)
        return at(function, size) if function and size is not None else None

    def keeps(self, request: Request, question: Question) -> bool:
        """Whether such a pass is kept."""
        return self._key(request, question) is not None

    def keep(self, recorded: Recorded, request: Request, question: Question) -> None:
        """Keep what was recorded of a pass, where it can be priced without its network."""
        key, whole = self._key(request, question), plain(recorded)
        if key is not None and whole is not None:
            self._keep(key, whole)

    def keep_sizes(
        self,
        recorded: Recorded,
        request: Request,
        question: Question,
        source: Source,
        took_s: float,
    ) -> None:
        """Follow further sizes, and keep the functions that give all between them; `took_s`: for one size.

        Sizes that take long are followed from the second question on.
        """
        asked, steps = size_of(request), Sizes(source, request, question)
        if asked is None or asked[0] != recorded.asked.batch_size:
            return
        longest = (
            None if asked[1] is None else next((n for n in LENGTHS if steps.inputs((1, n)) is not None), None)
        )
        windows = recorded.trace.about.windows.values()
        kinks = sorted({n for window in windows for n in range(window - 2, window + 2)})
        for sizes in sizes_to_follow(asked, kinks, longest):
            key = self._function_key(request, question, sizes[0])
            known = self._current(key)
            if known is not None and not known.get("later"):
                continue
            if took_s * len(sizes) > (SOON_S if known is None else LATER_S):
                keep(self.folder, key, {"later": True, "loaded": loaded()}, TRACES)
                continue
            stage(f"answered; keeping other sizes of {self.question['model']} (Ctrl-C skips that)")
            others = {size: found for size in sizes if (found := steps.followed(size)) is not None}
            if len(others) < len(sizes):
                continue
            alike = asked[1] is None or (asked[0] == 1) == (sizes[0][0] == 1)
            how = question.platform.library, request.routing
            function = solved({asked: recorded, **others}, *how) if alike else solved(others, *how)
            if function is None and asked[1] is None:  # one sample broadcasts in other ways
                function = solved(others, *how)
            self._keep(key, function)

    def _keep(self, key: str, whole: Any) -> None:
        answer = packed(whole)
        if answer is not None:
            keep(self.folder, key, {**answer, "loaded": loaded()}, TRACES)

    def _current(self, key: str) -> dict[str, Any] | None:
        found = recall(self.folder, key, TRACES)
        return found if found is not None and is_current(found) else None

    def _key(self, request: Request, question: Question, *, left_open: Sequence[str] = ()) -> str | None:
        """The key of a pass; None for one that takes more than one trace, or its network."""
        device = devices_part(request, question)
        if device is None:
            return None
        sizes = {name: v for name, v in request.options.items() if name not in (*PRICED, *left_open)}
        how = (sizes, request.input_shape, repr(request.routing), repr(request.phase), device)
        return key_of({**self.question, "pass": repr(how)})

    def _function_key(self, request: Request, question: Question, size: Size) -> str:
        """The key of the function that gives a pass: one sample broadcasts in other ways than several."""
        some = "any" if size[1] is None else "one" if size[0] == 1 else "several"
        phase = replace(request.phase, batch=None, context=None, prompt=None)
        key = self._key(replace(request, phase=phase), question, left_open=SIZES)
        return key_of({"function": key, "of": some})


@dataclass(frozen=True)
class Sizes:
    """Passes of one question at other sizes."""

    source: Source
    request: Request
    question: Question

    def inputs(self, size: Size) -> Pass | None:
        """What is followed for a batch and a length; None where the network does not take it."""
        request = replace(self.request, batch_size=size[0]).of_length(size[1])
        with suppress(NeuralPowerError):
            asked = request.asked(self.source, self.question.run)
            return asked if isinstance(asked, Pass) else None
        return None

    def followed(self, size: Size) -> Recorded | None:
        """What is recorded of it."""
        from neuralpower.trace.follow import record

        asked = self.inputs(size)
        with suppress(NeuralPowerError):
            return None if asked is None else record(asked, self.question)
        return None


def size_of(request: Request) -> Size | None:
    """The batch and the length of a pass; None where its inputs have shapes of their own."""
    phase = request.phase
    if request.input_shape is not None or phase.lengths is not None or phase.batch is not None:
        return None
    return request.batch_size, request.length
