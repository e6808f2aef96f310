"""Traces of named networks that are kept on the disk, so that another device is answered without torch.

The key of a pass holds the model with its files, versions, sizes, types, phase and how it is trained. It does
not hold the device, but for its family, whose automatic casts differ, and for a step its platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.files.cache import TRACES, cache_folder, keep, key_of, recall
from neuralpower.networks.sameness import is_current, loaded, network_of
from neuralpower.prediction.case import devices_part
from neuralpower.prediction.request import Request
from neuralpower.trace.followed import Recorded
from neuralpower.trace.kept import packed, unpacked
from neuralpower.trace.question import Question

if TYPE_CHECKING:
    from neuralpower.networks.source import Source

PRICED = ("run", "weights", "devices", "nodes", "micro_batches")  # options that a recorded pass leaves open


@dataclass(frozen=True)
class KeptNetwork:
    """A named network, and the folder that keeps what is known of it."""

    folder: Path
    question: Mapping[str, Any]

    @classmethod
    def of(cls, model: Any) -> KeptNetwork | None:
        """The network of a name; None where nothing is kept: switched off, code, or fetched."""
        folder = cache_folder() if isinstance(model, str) else None
        question = None if folder is None else network_of(model)
        return None if folder is None or question is None else cls(folder, question)

    def facts(self, shape: Any) -> dict[str, Any] | None:
        """Its name, and the batch size that its inputs have by default; None where they are not kept."""
        found = recall(self.folder, self._facts_key(shape), TRACES)
        return found if found is not None and is_current(found) else None

    def keep_facts(self, source: Source, shape: Any) -> None:
        """Keep these."""
        facts = {"name": str(source.name), "batch": source.batch_size(None, shape), "loaded": loaded()}
        keep(self.folder, self._facts_key(shape), facts, TRACES)

    def _facts_key(self, shape: Any) -> str:
        return key_of({**self.question, "facts": str(shape)})

    def recorded(self, request: Request, question: Question) -> Recorded | None:
        """What was recorded of such a pass; None where it is not kept."""
        key = self._key(request, question)
        found = None if key is None else recall(self.folder, key, TRACES)
        return unpacked(found) if found is not None and is_current(found) else None

    def keeps(self, request: Request, question: Question) -> bool:
        """Whether such a pass is kept."""
        return self._key(request, question) is not None

    def keep(self, recorded: Recorded, request: Request, question: Question) -> None:
        """Keep what was recorded of a pass, where it can be priced without its network."""
        key, answer = self._key(request, question), packed(recorded)
        if key is not None and answer is not None:
            keep(self.folder, key, {**answer, "loaded": loaded()}, TRACES)

    def _key(self, request: Request, question: Question) -> str | None:
        """The key of a pass; None for one that takes more than one trace, or its network."""
        device = devices_part(request, question)
        if device is None:
            return None
        sizes = {name: value for name, value in request.options.items() if name not in PRICED}
        how = (sizes, request.input_shape, repr(request.routing), repr(request.phase), device)
        return key_of({**self.question, "pass": repr(how)})
