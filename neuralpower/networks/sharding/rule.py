"""A rule for networks that come without a plan: pairs of products around a nonlinearity, and attention.

One run on the meta device shows them. A product whose outputs go only through point-wise calls into one other
product is split by outputs, the other one by inputs (Shoeybi et al., 2019, section 3). Attention that counts
its heads in attributes is split by heads, where the network then still runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.errors import InputError, NeuralPowerError
from neuralpower.networks.call_cache import tensors_in
from neuralpower.networks.inputs import Inputs
from neuralpower.networks.running import Answers, name_of, on_meta
from neuralpower.networks.sharding import heads, styles
from neuralpower.networks.sharding.placements import PARTIAL
from neuralpower.networks.sharding.plan import INFERENCE, TRANSFORMERS, Plan, Sharding
from neuralpower.networks.users_code import users_code

PRODUCTS = ("Linear", "Conv1D")  # classes of one product with a matrix
SAME = frozenset("dropout native_dropout clone detach contiguous to _to_copy alias".split())
"""Operators that leave each number where it is, in addition to those that torch calls point-wise."""
VIEWS = frozenset("view reshape _unsafe_view unsqueeze squeeze".split())
INNER = ("all_head_size", "split_size", "inner_dim", "inner_size", "attention_inner_size")
OUTER = (*INNER, "embed_dim", "hidden_size", "hidden_dim", "dim", "d_model")


def completed(module: nn.Module, plan: Plan, asked: Sharding, example: Callable[[], Inputs] | None) -> Plan:
    """The plan, or what a rule finds where it says nothing of blocks.

    Raises:
        InputError: there is no plan for the blocks and `asked.strict`.
    """
    tables = (styles.VOCABULARY, styles.GATHERED)
    if any(one not in tables for one in plan.entries.values()):
        served = asked.use != INFERENCE and not asked.strict and plan.source == TRANSFORMERS
        if example is None or not served or not _whole_attention(module, plan.entries):
            return plan
        found = by_rule(module, asked.layout.tensor, example, plan.entries)
        return plan.with_rule(found, found)
    if asked.strict:
        raise InputError(
            f"{type(module).__name__} has no plan for tensor ranks, and strict refuses a rule; "
            "give a plan of names and styles, or leave strict out"
        )
    if example is None:
        return plan
    found = by_rule(module, asked.layout.tensor, example)
    return plan.with_rule(found, found)


def _whole_attention(module: nn.Module, entries: Mapping[str, Any]) -> bool:
    """Whether there is attention of which a plan says nothing: engines and Megatron split it all the same."""
    for path, part in module.named_modules():
        named = any(name.startswith(f"{path}.") for name in entries)
        count = sum(type(one).__name__ in PRODUCTS for one in part.modules())
        if heads.is_attention(part) and not named and count > 1:
            return True
    return False


def by_rule(
    module: nn.Module,
    ranks: int,
    example: Callable[[], Inputs],
    known: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, styles.Style]:
    """Styles of the modules that a rule finds; none where the network cannot be run on the meta device.

    `known` are paths that a plan has styles for: their modules are left as they are.
    """
    inputs = example()
    seen = _Followed(module)
    if not _runs(module, inputs, seen):
        return {}
    found: dict[str, styles.Style] = {}
    for sources, target in seen.pairs():
        fits = all(seen.features[source] % ranks == 0 for source in sources)
        if fits and not known.keys() & {*sources, target}:
            found |= _pair(seen.products, sources, target)
    for paths in seen.attention({**found, **known}).values():
        found |= _attention(module, paths, seen, ranks, inputs)
    return found


def _pair(products: Mapping[str, nn.Module], sources: Sequence[str], target: str) -> dict[str, styles.Style]:
    """Products split by outputs, and the one that reads them by inputs."""
    turned = {True: (TURNED_COLUMNS, TURNED_ROWS), False: (styles.COLUMNS, styles.ROWS)}
    found = {path: turned[hasattr(products[path], "nf")][0] for path in sources}
    return {**found, target: turned[hasattr(products[target], "nf")][1]}


def _runs(module: nn.Module, inputs: Inputs, inside: Answers) -> bool:
    """Whether the network runs on the meta device."""
    try:
        with users_code(type(module).__name__):
            on_meta(module, tuple(inputs.args), dict(inputs.kwargs), inside)
    except NeuralPowerError:
        return False
    return True


class _SeenError(Exception):
    """Ends a run of which enough is known."""


class _Followed(Answers):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Which products' outputs reach which product through point-wise calls alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.products = {
            path: part for path, part in module.named_modules() if type(part).__name__ in PRODUCTS
        }
        self.order: list[str] = []  # of calls
        self.features: dict[str, int] = {}  # that a product makes
        self.shapes: dict[str, list[tuple[int, ...]]] = {}  # of outputs, by path of an attention module
        self._reads: dict[str, frozenset[str]] = {}  # product -> those whose outputs it reads
        self._readers: dict[str, set[str]] = {}
        self._twice: set[str] = set()
        self._leaks: set[str] = set()  # products whose outputs go elsewhere, too
        self._from = WeakIdKeyDictionary()  # tensor -> products that it is made of
        self._near = WeakIdKeyDictionary()  # tensor -> products that lie before it, none between
        self.before: dict[str, frozenset[str]] = {}  # product -> those that lie before it, none between
        self._depth = 0  # of products that are running

    def begins(self, state: Mapping[str, Tensor], inputs: Any) -> None:
        """Have products say when they run."""
        self._handles: list[Any] = []
        for path, part in self.products.items():
            self._handles.append(part.register_forward_pre_hook(self._before(path)))
            self._handles.append(part.register_forward_hook(self._after(path)))

    def __exit__(self, *error: Any) -> Any:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        return super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _before(self, path: str) -> Any:
        def hook(part: nn.Module, args: tuple[Any, ...]) -> None:
            self._depth += 1
            known = bool(args) and isinstance(args[0], Tensor) and args[0] in self._from
            sources: frozenset[str] = self._from[args[0]] if known else frozenset()
            near = bool(args) and isinstance(args[0], Tensor) and args[0] in self._near
            self.before[path] = self._near[args[0]] if near else frozenset()
            if path in self._reads:  # a product that runs twice
                self._leaks |= {path, *sources, *self._reads[path]}
                self._twice.add(path)
            self._reads[path] = sources
            self.order.append(path)
            for source in sources:
                self._readers.setdefault(source, set()).add(path)

        return hook

    def _after(self, path: str) -> Any:
        def hook(part: nn.Module, args: Any, output: Any) -> None:
            self._depth -= 1
            if isinstance(output, Tensor):
                self._from[output] = self._near[output] = frozenset([path])
                self.features[path] = output.shape[-1]

        return hook

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note where the outputs of products go."""
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if self._depth:
            return output
        inputs = [t for t in tensors_in((args, kwargs or {})) if t.dim()]
        near = frozenset[str]().union(*(self._near[t] for t in inputs if t in self._near))
        for made in tensors_in(output) if near else ():
            self._near[made] = near
        known = [self._from[t] for t in inputs if t in self._from]
        if known:
            sources = frozenset[str]().union(*known)
            name = name_of(func).split(".", 1)[-1]
            kept = torch.Tag.pointwise in func.tags or name in SAME | VIEWS
            same = isinstance(output, Tensor) and all(t.shape[-1] == output.shape[-1] for t in inputs)
            if kept and same and len(known) == len(inputs):
                self._from[output] = sources
            else:
                self._leaks |= sources
        return output

    def pairs(self) -> Iterator[tuple[list[str], str]]:
        """(Products, the one that alone reads them)."""
        targets: set[str] = set()
        for target, sources in self._reads.items():
            alone = all(self._readers[source] == {target} for source in sources)
            if sources and alone and not sources & (self._leaks | targets) and target not in self._twice:
                targets.add(target)
                yield sorted(sources), target

    def attention(self, found: Mapping[str, Any]) -> dict[type, list[str]]:
        """Paths of attention whose products are in no pair, by class."""
        paths: dict[type, list[str]] = {}
        outer: list[str] = []
        for path, part in self.module.named_modules():
            inside = self.inside(path)
            if not path or any(path.startswith(f"{one}.") for one in outer) or not heads.is_attention(part):
                continue
            if len(inside) > 1 and not any(one in found for one in inside):
                outer.append(path)
                paths.setdefault(type(part), []).append(path)
        return paths

    def columns(self, inside: Sequence[str]) -> list[str]:
        """Products of attention that make heads: all but the last one and those that make latents."""
        *first, _ = inside
        latents = frozenset[str]().union(*(self.before[one] for one in first))
        return [one for one in first if one not in latents]

    def inside(self, path: str) -> list[str]:
        """Products of a module, in the order in which they ran."""
        return [one for one in self.order if one.startswith(f"{path}.")]


def _attention(
    module: nn.Module, paths: Sequence[str], seen: _Followed, ranks: int, inputs: Inputs
) -> dict[str, styles.Style]:
    """Styles of attention of one class, with its counts of heads shrunk; none where it would not run."""
    first = module.get_submodule(paths[0])
    names = seen.inside(paths[0])
    count = next((n for part in first.modules() if (n := heads.query_heads(part)) is not None), None)
    if count is None or count % ranks or len(set(names)) != len(names):
        return {}
    if any(seen.features[name] % count for name in seen.columns(names)):
        return {}
    whole = _shape_after(module, first, inputs)
    for attributes in ((*heads.COUNTS, *INNER), heads.COUNTS, (*heads.COUNTS, *OUTER), ()):
        with _smaller(first, names, seen, attributes, ranks):
            fits = whole is not None and _shape_after(module, first, inputs) == whole
        if fits:
            found: dict[str, styles.Style] = {}
            for path in paths:
                for part in module.get_submodule(path).modules():
                    vars(part).update(_shrunk(part, attributes, ranks))
                inside = seen.inside(path)
                sources, target = seen.columns(inside), inside[-1]
                found |= _pair(seen.products, sources, target)
                latents = {*inside} & seen.before[target] - {*sources}  # with rotated keys
                found |= dict.fromkeys(latents, styles.style_named("mla_kv_a_proj"))
            return found
    return {}


def _shape_after(module: nn.Module, part: nn.Module, inputs: Inputs) -> list[torch.Size] | None:
    """Shape of what a part returns first in a run, which then ends; None where the run fails before."""
    shapes: list[torch.Size] = []

    def note(part: nn.Module, args: Any, output: Any) -> None:
        shapes.extend(t.shape for t in tensors_in(output)[:1])
        raise _SeenError

    with part.register_forward_hook(note):
        _runs(module, inputs, Answers())
    return shapes or None


def _shrunk(part: nn.Module, attributes: Sequence[str], ranks: int) -> dict[str, int]:
    """Attributes of a module that a rank has a part of."""
    found = {name: getattr(part, name) for name in attributes if isinstance(vars(part).get(name), int)}
    keys = {name: vars(part)[name] for name in heads.KEY_COUNTS if isinstance(vars(part).get(name), int)}
    return {name: max(value // ranks, 1) for name, value in ({**found, **keys} if found else {}).items()}


@contextlib.contextmanager
def _smaller(
    first: nn.Module, names: Sequence[str], seen: _Followed, attributes: Sequence[str], ranks: int
) -> Iterator[None]:
    """Attention with a rank's products, for a trial."""
    parts = [*first.modules()]
    before = [(part, dict(vars(part)), dict(part._parameters)) for part in parts]
    try:
        for part in parts:
            vars(part).update(_shrunk(part, attributes, ranks))
        for path, one in _pair(seen.products, seen.columns(names), names[-1]).items():
            styles.shrink(seen.products[path], one, ranks)
        yield
    finally:
        for part, attributes_before, parameters in before:
            vars(part).update(attributes_before)
            part._parameters.clear()
            part._parameters.update(parameters)


def _columns(name: str, dims: int) -> int | None:
    """The output axis of weights [in, out], as transformers' Conv1D has them."""
    return dims - 1


def _rows(name: str, dims: int) -> int | None:
    return 0 if dims > 1 else None


TURNED_COLUMNS = styles.Style("colwise", axis=_columns, makes=-1, returns=-1)
TURNED_ROWS = styles.Style("rowwise", axis=_rows, given=-1, reads=-1, makes=PARTIAL)
