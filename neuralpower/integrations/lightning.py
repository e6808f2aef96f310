"""A callback for Lightning that sets the batch size before data are loaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.integrations.batch_size import kept, size_or_own, with_precision

LIBRARIES = ("lightning.pytorch", "pytorch_lightning")
LOGS = ("log", "log_dict")  # which need a running trainer
UNKNOWN = 1  # the batch size in a warning where none has been found


def batch_size_callback(attribute: str = "batch_size", sample: Any = None, **settings: Any) -> Any:
    """A callback for Trainer(callbacks=[...]): it sets the largest batch size that fits.

    It sets the attribute of the LightningModule, its hparams or the datamodule, before data are loaded. The
    sample batch comes from the training data, the precision from the Trainer. A warning says why the user's
    own size stays.

    Args:
        attribute: whose value is the batch size.
        sample: a batch as `training_step` takes it; by default the first of the training data.
        **settings: as of `largest_batch`, such as device="h100", optimizer="sgd" or at_most=512.
    """
    found = (getattr(sys.modules.get(name), "Callback", None) for name in LIBRARIES)
    bases = [base for base in found if base is not None]
    made = type("BatchSizeCallback", (_Callback, *bases[:1]), {})
    return made(attribute, sample, settings)


class _Callback:
    """What a Lightning callback does; the library's own class is a base where it is imported."""

    def __init__(self, attribute: str, sample: Any, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.attribute, self.sample, self.settings = attribute, sample, settings

    def setup(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        if stage not in (None, "fit"):
            return
        data = getattr(trainer, "datamodule", None)
        holder = _holder(self.attribute, pl_module, data)
        if holder is None:
            kept(UNKNOWN, f"neither the module nor its data have an attribute {self.attribute}")
            return
        own = int(_get(holder, self.attribute))
        try:
            sample = self.sample if self.sample is not None else _first_batch(pl_module, data)
        except Exception as error:  # of the user's loaders
            kept(own, f"no sample batch: {type(error).__name__}: {error}")
            return
        step = _TrainingStep(pl_module)
        settings = with_precision(self.settings, getattr(trainer, "precision", None))
        _set(holder, self.attribute, size_or_own(step, (sample,), own, loss=_loss, **settings))


class _TrainingStep(nn.Module):
    """A LightningModule whose forward is its training step."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Any:
        step: Any = self.module
        with _silent(step):
            return step.training_step(batch, 0)


@contextlib.contextmanager
def _silent(module: nn.Module) -> Iterator[None]:
    own = {name: vars(module)[name] for name in LOGS if name in vars(module)}
    vars(module).update(dict.fromkeys(LOGS, lambda *args, **kwargs: None))
    try:
        yield
    finally:
        for name in LOGS:
            del vars(module)[name]
        vars(module).update(own)


def _loss(output: Any) -> Tensor:
    """The loss that a training step returns: a tensor, or {"loss": tensor}."""
    found = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(found, Tensor):
        raise InputError("training_step returns no loss; return a tensor, or a mapping with one as 'loss'")
    return found


def _first_batch(module: Any, data: Any) -> Any:
    """The first batch of the training data; raises InputError, or what a loader raises."""
    source = data if data is not None else module
    loader = source.train_dataloader()
    return next(iter(loader))


def _holder(name: str, module: Any, data: Any) -> Any:
    """What holds the attribute: the module, its hparams, the datamodule or its hparams; None for nothing."""
    for owner in (module, data):
        for one in (owner, getattr(owner, "hparams", None)):
            if one is not None and (name in one if isinstance(one, Mapping) else hasattr(one, name)):
                return one
    return None


def _get(holder: Any, name: str) -> Any:
    return holder[name] if isinstance(holder, Mapping) else getattr(holder, name)


def _set(holder: Any, name: str, value: int) -> None:
    if isinstance(holder, Mapping):
        holder[name] = value  # type: ignore[index]  # hparams can be changed
    else:
        setattr(holder, name, value)
