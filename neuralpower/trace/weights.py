"""The weights of a module: names, sorts, shapes and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from neuralpower.dtypes import DTYPES
from neuralpower.layers.tensors import dtype_name, torchs_dtype_name
from neuralpower.quantisation.weights import EMBEDDING, EXPERTS, HEAD, LINEAR, OTHER, Weight

TURNED = "Conv1D"  # of transformers: a fully connected layer whose matrix lies as [inputs, outputs]
# a scale and a zero point: float32 and int32, both float16 where numbers have less than 8 bits
SCALE_BYTES, NARROW_SCALE_BYTES = 8, 4


def weights_of(model: nn.Module, packed: Iterable[Weight] = ()) -> tuple[Weight, ...]:
    """All parameters, those `packed`, then all buffers; a shared one has its first name."""
    head, embedding = _ends(model)
    owners = dict(model.named_modules(remove_duplicate=False))
    seen: set[int] = set()

    def found(named: Iterable[tuple[str, Tensor]]) -> Iterator[Weight]:
        for name, tensor in named:
            place = tensor.untyped_storage()._cdata
            if place in seen or not tensor.numel():
                continue
            seen.add(place)
            owner = owners.get(name.rpartition(".")[0])
            tied = head is not None and embedding is not None and tensor is head is embedding
            yield Weight(
                name=name,
                sort=EMBEDDING if tied else HEAD if tensor is head else _sort(name, tensor, owner),
                shape=tuple(tensor.shape),
                dtype=torchs_dtype_name(tensor),
                bytes=tensor.untyped_storage().nbytes(),
                tied=tied,
                turned=type(owner).__name__ == TURNED,
            )

    return (*found(model.named_parameters()), *packed, *found(model.named_buffers()))


def packed_weights(model: nn.Module) -> tuple[Weight, ...]:
    """Those that modules of `torch.ao` keep in opaque objects; blocks that a library pads are not counted."""
    packed: list[Weight] = []
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.ScriptObject):
                with _disable_current_modes():
                    tensors = {tensor.data_ptr(): tensor for tensor in _unpacked(value)}
                names = (f"{path}.{name}.{number}".lstrip(".") for number in range(len(tensors)))
                packed += map(_packed, names, tensors.values())
    return tuple(packed)


def _unpacked(value: Any) -> Iterator[Tensor]:
    """The tensors in an opaque object, and in those that it keeps, as a cell of a recurrent layer does."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _unpacked(one)
    elif isinstance(value, torch.ScriptObject):
        opaque: Any = value
        yield from _unpacked(opaque.unpack() if hasattr(opaque, "unpack") else opaque.__getstate__())


def _packed(name: str, tensor: Tensor) -> Weight:
    """A weight of an opaque object: one that comes out in float32 lies there in float16, but for a bias."""
    dtype = dtype_name(tensor)
    if dtype == "float32" and tensor.dim() > 1:
        dtype = "float16"
    size = math.ceil(tensor.numel() * DTYPES[dtype].bits / 8)
    if tensor.is_quantized:
        whole = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        scales = 1 if whole else tensor.shape[tensor.q_per_channel_axis()]
        size += scales * (SCALE_BYTES if DTYPES[dtype].bits >= 8 else NARROW_SCALE_BYTES)
    return Weight(name=name, sort=OTHER, shape=tuple(tensor.shape), dtype=dtype, bytes=size)


def _ends(model: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """(weight of the head that gives logits, of the embedding of tokens), as a model of transformers says."""
    return _asked(model, "get_output_embeddings"), _asked(model, "get_input_embeddings")


def _asked(model: nn.Module, name: str) -> Tensor | None:
    ask: Any = getattr(model, name, None)
    try:
        return getattr(ask(), "weight", None) if callable(ask) else None
    except Exception:  # models that have none raise what they like
        return None


def _sort(name: str, tensor: Tensor, owner: nn.Module | None) -> str:
    if not isinstance(tensor, nn.Parameter) or owner is None:
        return OTHER
    if isinstance(owner, nn.Embedding):
        return EMBEDDING
    if name.endswith(".weight") and tensor.dim() == 2:
        return LINEAR if isinstance(owner, nn.Linear) or type(owner).__name__ == TURNED else OTHER
    experts = "expert" in name.lower() or "expert" in type(owner).__name__.lower()
    return EXPERTS if tensor.dim() == 3 and experts else OTHER


class StandIns:
    """The tensors that stand for a model's parameters and buffers in a pass, and what it reads of them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.tensors: Mapping[str, Tensor] = {}
        self.leaves: list[Tensor] = []  # for the parameters that ask for a gradient
        self._names: dict[int, str] = {}  # by identity
        # (identity, offset, shape) of a part -> the call that was the first to read it, its bytes
        self.first_read: dict[tuple[int, Any, torch.Size], tuple[int, int]] = {}

    def begins(self, tensors: Mapping[str, Tensor]) -> None:
        """Note the tensors, by name, before a pass."""
        parameters = dict(self._model.named_parameters())  # whose names tied ones go by
        self.tensors = tensors
        self._names = {id(tensors[name]): name for name in (*tensors, *parameters)}
        self.leaves = [tensors[name] for name, parameter in parameters.items() if parameter.requires_grad]

    def name(self, tensor: Tensor) -> str:
        """The parameter or buffer that a tensor stands for; "" for others."""
        return self._names.get(id(tensor), "")

    def read(self, at: int, tensors: Iterable[Tensor], view: Tensor | None) -> None:
        """Note the tensors that call `at` reads; of one that it makes a view of, no more than the view."""
        for tensor in tensors:
            if id(tensor) in self._names:
                part = tensor if view is None else view
                where = id(tensor), part.storage_offset(), part.shape
                self.first_read.setdefault(where, (at, part.nbytes))

    @property
    def unread(self) -> set[str]:
        """Names of those that no call has read."""
        read = {identity for identity, _, _ in self.first_read}
        return {name for identity, name in self._names.items() if identity not in read}
