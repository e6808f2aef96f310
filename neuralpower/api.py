"""A predictor with everything that can be asked of it, for Python: `neuralpower.load(NAME)`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from neuralpower.devices.host import read_cpu
from neuralpower.errors import InputError, is_count, unknown
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.learn import predictor_lookup
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.phases import PHASES, PREDICTED, Phase
from neuralpower.networks.requests import Asked, asked_of, given_to
from neuralpower.networks.sources import published_dtype, resolve
from neuralpower.predict.case import device_memory, predict, run_of
from neuralpower.predict.compose import question_of
from neuralpower.predict.explore.compare import Comparison, Side, compare
from neuralpower.predict.explore.fit import Fit, Request, bytes_of, fit
from neuralpower.predict.explore.score import Score, score
from neuralpower.predict.explore.sweep import Sweep, sweep
from neuralpower.predict.prediction import Prediction
from neuralpower.predict.weights import scheme_asked
from neuralpower.trace.question import EAGER
from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe

FIELDS = [each.name for each in fields(Request) if each.name != "model"]  # of what is asked of `fit`
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def _on_cpu(asked: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A default device that the caller has set does not matter inside."""

    @functools.wraps(asked)
    def answered(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        usual = torch.get_default_device().type == "cpu"  # a device of its own slows every call down
        with contextlib.nullcontext() if usual else torch.device("cpu"):
            return asked(*args, **kwargs)

    return answered


@dataclass(frozen=True)
class LoadedPredictor:
    """What was learnt of a device, ready to be asked; nothing is run on any device."""

    predictor: Predictor

    @property
    def name(self) -> str:
        """The predictor's name."""
        return self.predictor.name

    @property
    def device(self) -> str:
        """What it was learnt on."""
        return self.predictor.device

    def on(self, device: str | Path) -> LoadedPredictor:
        """The same for a device that it was learnt on, or another by its spec sheet.

        Raises:
            PredictorError: it holds for one device alone, or not for one of that class.
            InputError: the device is not known.
        """
        return LoadedPredictor(predictor_lookup.on(self.predictor, device)[0])

    @_on_cpu
    def predict(
        self,
        model: str | Path | nn.Module,
        inputs: Any = None,
        *,
        batch_size: int | None = None,
        seq_len: int | None = None,
        input_shape: Sequence[int] | None = None,
        dtype: str | torch.dtype | None = None,
        phase: str | Phase = FORWARD,
        recipe: Recipe = RECIPE,
        run: str | None = None,
        weights: str | None = None,
    ) -> Prediction:
        """Latency, power, energy and memory of one pass.

        Args:
            model: as the command line has it, or a module, which is not changed.
            inputs: what its forward is called with: a tensor, a tuple of positions or a mapping of keywords;
                by default made from the model's configuration and the sizes below.
            batch_size: samples; else the first size of the first tensor of `inputs` or of the model's, or 1.
            seq_len: tokens per sample.
            input_shape: of one sample.
            dtype: of weights and floating inputs, where inputs are made; else a module's own, or float32.
            phase: "forward", "training" or "backward"; or a language model's "prefill", "decode" or
                "generate", with sizes as `Phase.decode(batch=8, context=4096)`.
            recipe: of training: optimizer, accumulation, checkpointing.
            run: "eager", "graph", "compile" or "engine" (`neuralpower.trace.question.RUNS`); by default
                "engine" for a language model's phases on a GPU, else "eager".
            weights: how they are quantised: "int4:128", "fp8", "q4_k_m"; by default as a checkpoint's are.

        Raises:
            InputError: an unknown phase, way to run or quantisation, sizes beside `inputs`, sizes that the
                model does not take, or `inputs` of another dtype than asked for.
            ModelError: the model cannot be found, built or traced.
            PredictorError: a dtype or phase that was not learnt.
        """
        asked = phase if isinstance(phase, Phase) else Phase(phase)
        asked.check(PREDICTED)
        asked, way = (asked, FORWARD) if asked.name in PHASES else (replace(asked, name=FORWARD), asked.name)
        _check(batch_size, recipe)
        asked_dtype = str(dtype).removeprefix("torch.") if dtype is not None else None
        dtype = asked_dtype or _dtype(model)
        self.predictor.check(dtype, FORWARD if way == TRAINING else way)
        source = resolve(model)
        if inputs is None:
            shape = tuple(input_shape) if isinstance(input_shape, Iterable) else input_shape
            request = InputRequest(int(batch_size or 1), seq_len, shape, torch_dtype(dtype))
            runs: Asked = asked_of(source, request, asked, own_batch=batch_size is None)
        elif seq_len is not None or input_shape is not None:
            both = "sizes and inputs are both given, and inputs have their sizes"
            raise InputError(f"{both}; leave one of them out")
        elif asked != Phase():
            both = f"inputs and the phase {asked.name} are both given"
            raise InputError(f"{both}, and it makes its own inputs; leave one out")
        else:
            runs = given_to(source, inputs, dtype, batch_size, checked=asked_dtype is not None)
        how: Any = {"run": run_of(self.predictor, run, asked, way), "weights": scheme_asked(weights)}
        question = question_of(self.predictor, phase=way, dtype=dtype, recipe=recipe, **how)
        return predict(runs, self.predictor, question, model=str(source.name))[0]

    @_on_cpu
    def score(
        self, candidates: Iterable[str | Mapping[str, Any]], by: str = "latency", *, trust_code: bool = False
    ) -> list[Score]:
        """Scores of candidates in their order, ranked (see `predict.explore.score`); raises InputError.

        `trust_code` lets candidates name functions and exported programs, which run code.
        """
        if isinstance(candidates, (str, Mapping)) or not isinstance(candidates, Iterable):
            must = "must be a list of JSON objects, or of lines that hold one"
            raise InputError(f"candidates {candidates!r:.40}: {must}")
        return score(candidates, self.predictor, by, trust_code=trust_code)

    @_on_cpu
    def sweep(
        self,
        model: str | nn.Module,
        *,
        batch_sizes: Sequence[int] = (1,),
        lengths: Sequence[int | None] = (None,),
        dtypes: Sequence[str] | None = None,
        input_shape: Sequence[int] | None = None,
        memory: str | float | None = None,
        run: str = EAGER,
        weights: str | None = None,
    ) -> Sweep:
        """A grid of sizes from few traces; raises as `neuralpower.predict.explore.sweep`.

        `memory`: of the device, such as "24GB", or bytes. `dtypes`: a module's own by default, else float32.
        `input_shape`: of one sample. `run` and `weights`: as in `predict`.
        """
        return sweep(
            model,
            [self.predictor],
            batch_sizes=batch_sizes,
            lengths=lengths,
            dtypes=dtypes or (_dtype(model),),
            input_shape=input_shape,
            memory_bytes=None if memory is None else bytes_of(memory),
            run=run,
            weights=weights,
        )

    def compare(self, a: str | nn.Module, b: str | nn.Module, **sizes: Any) -> Comparison:
        """Two models on this device: the ratio of their times; `sizes` as those of `predict`."""
        found = [self.predict(model, **sizes) for model in (a, b)]
        return compare(*(Side(prediction.model, prediction, self.predictor) for prediction in found))

    @_on_cpu
    def fit(self, model: str | nn.Module, memory: str | float | None = None, **request: Any) -> Fit:
        """Whether a model fits into the device's memory, or another: "24GB", or bytes.

        `request` has the fields of `explore.fit.Request`; its `dtype` is by default a module's, or float32.

        Raises:
            InputError: the device's memory is not known and none is given, or a field that `Request` has not.
        """
        room = bytes_of(memory) if memory is not None else device_memory(self.predictor)
        if room is None:
            raise InputError(f"{self.device}: its memory is not known; give memory, such as '24GB'")
        for name in request:
            if name not in FIELDS:
                raise unknown("field of a request", name, FIELDS)
        request = {"dtype": _dtype(model), "platform": self.predictor.platform, **request}
        return fit(Request(model, **request), room)


def load(name: str | Path | None = None) -> LoadedPredictor:
    """The predictor of that name or file; by default this machine's, else one that was learnt on a CPU.

    Raises:
        PredictorError: there is none of that name, or the file cannot be used.
    """
    if name is not None:
        return LoadedPredictor(predictor_lookup.load(name))
    return LoadedPredictor(predictor_lookup.default_predictor(read_cpu()))


def _check(batch_size: int | None, recipe: Any) -> None:
    """Raise InputError for a batch size that is none, and for what is no recipe."""
    if batch_size is not None and not is_count(batch_size):
        raise InputError(f"batch size {batch_size}: must be a whole number, 1 or more; choose 1")
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe {recipe!r:.40}: must be a Recipe, such as neuralpower.Recipe('adam')")


def _dtype(model: str | Path | nn.Module) -> str:
    """That of a module's weights, or in which a model of the catalogue or the hub was published."""
    if isinstance(model, (str, Path)):
        return published_dtype(str(model)) or "float32"
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    return next((str(w.dtype).removeprefix("torch.") for w in weights if w.is_floating_point()), "float32")
