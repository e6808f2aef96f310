"""A scheme: a format, and which weights of a network it covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from neuralpower.errors import unknown
from neuralpower.quantisation.formats import Format
from neuralpower.quantisation.weights import EMBEDDING, EXPERTS, HEAD, LINEAR, Matrices, Pattern, Weight

Forms = Mapping[str, "Format | None"]  # by a weight's name; None: it stays as it is


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How a network's weights are quantised.

    A weight has the form of the first rule whose pattern names it, else `form` unless it is excluded.
    """

    name: str  # as the checkpoint or the user names it: awq, int4:128, q4_k_m
    form: Format | None  # None: rules alone say what is quantised
    left_out: tuple[Pattern, ...] = ()
    rules: tuple[tuple[Pattern, Format | None], ...] = ()
    head: bool = False  # whether a language model's head is covered where no pattern names it
    embeddings: Format | None = None  # of tables of embeddings
    mixture: str = ""  # of a GGUF file: which type each tensor has, by neuralpower.quantisation.gguf
    types: Mapping[str, str] = field(default_factory=dict, hash=False)  # GGUF's name -> type, of a real file
    checkpoint: bool = False  # whether the weights of a checkpoint lie so already
    widened: tuple[
        str, ...
    ] = ()  # types that a device has no arithmetic for: products take inputs as they are
    parts: tuple[tuple[str, Scheme], ...] = ()  # of modules at the top, which have schemes of their own

    def forms(self, weights: Sequence[Weight], matrices: Mapping[str, Matrices]) -> Forms:
        """The form of each weight by its name.

        Args:
            weights: all of the network.
            matrices: (matrices, outputs, inputs) by name, of those that products have read.

        Raises:
            InputError: a group does not divide the inputs of a product; a part that the network lacks.
        """
        if self.parts:
            return self._forms_of_parts(weights, matrices)
        if self.mixture:
            from neuralpower.quantisation.gguf import mixed

            return mixed(self.mixture, weights, matrices, self.types)
        found = {weight.name: self._form(weight) for weight in weights}
        for weight in weights:
            form = found[weight.name]
            if form is not None:
                form.check(weight.module, matrices.get(weight.name, weight.matrices))
        return found

    def _forms_of_parts(self, weights: Sequence[Weight], matrices: Mapping[str, Matrices]) -> Forms:
        own: dict[str, list[Weight]] = {}
        for weight in weights:
            own.setdefault(weight.name.partition(".")[0], []).append(weight)
        found: dict[str, Format | None] = {weight.name: None for weight in weights}
        for part, scheme in self.parts:
            if part not in own:
                raise unknown(f"part in --weights {self.name}", part, own)
            found |= scheme.forms(own[part], matrices)
        return found

    def _form(self, weight: Weight) -> Format | None:
        if weight.sort == EMBEDDING:
            return self.embeddings
        if weight.sort not in (LINEAR, HEAD, EXPERTS):
            return None
        for pattern, form in self.rules:
            if pattern.matches(weight):
                return form
        if weight.sort == HEAD and not self.head:
            return None
        return None if any(pattern.matches(weight) for pattern in self.left_out) else self.form

    def on(self, peaks: Mapping[str, float]) -> Scheme:
        """The scheme as a device with these peaks runs it: without arithmetic for it, weights alone."""
        rules = tuple((pattern, form and form.on(peaks)) for pattern, form in self.rules)
        lost = [form.activations for form in self.all_forms if form.on(peaks) != form]
        form = self.form and self.form.on(peaks)
        parts = tuple((part, scheme.on(peaks)) for part, scheme in self.parts)
        return replace(self, form=form, rules=rules, widened=tuple(dict.fromkeys(lost)), parts=parts)

    @property
    def all_forms(self) -> tuple[Format, ...]:
        of_parts = (form for _, scheme in self.parts for form in scheme.all_forms)
        found = (self.form, *(form for _, form in self.rules), *of_parts)
        return tuple(dict.fromkeys(form for form in found if form is not None))
