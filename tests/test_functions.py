"""The functions of `neuralpower`: how they are found, and what they take."""

from __future__ import annotations

import functools
import inspect
import io
import pydoc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neuralpower
from neuralpower.api.loaded import LoadedPredictor, chosen
from neuralpower.devices import host
from neuralpower.devices.spec import spec_of
from neuralpower.errors import CoverageError, InputError, ModelError, PredictorError
from neuralpower.learn.files.predictor_files import known_predictors, read_predictor
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.prediction import request

ROOT = Path(__file__).parent.parent
NAMES = (
    *("calibrate", "compare", "dataset", "evaluate", "fit", "gate", "load", "memory", "parallel", "predict"),
    *("plan", "profile", "rank", "score", "sweep", "traffic", "train"),
)
MOST_PARAMETERS = 8


@pytest.fixture(scope="module")
def predictor() -> LoadedPredictor:
    return neuralpower.load("amd-epyc-2c")


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 10))


# ---- how they are found ----


def test_all_names_are_listed_and_importing_them_imports_no_torch() -> None:
    program = (
        "import sys, neuralpower\n"
        f"assert set({NAMES}) <= set(dir(neuralpower)) & set(neuralpower.__all__)\n"
        "assert set(neuralpower.__all__) <= set(dir(neuralpower))\n"
        "assert all(callable(getattr(neuralpower, name)) for name in {names})\n".format(names=NAMES)
        + "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "import neuralpower.prediction.case\n"
        "assert callable(neuralpower.predict)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_package_bears_the_name_of_a_public_function() -> None:
    packages = {path.parent.name for path in (ROOT / "neuralpower").glob("*/__init__.py")}
    assert packages and not packages & set(NAMES)


def test_help_shows_each_function_with_its_example() -> None:
    text = io.StringIO()
    pydoc.Helper(output=text).help(neuralpower)
    shown = text.getvalue()
    for name in NAMES:
        assert f"\n    {name}(" in shown
        assert ">>> " in (inspect.getdoc(getattr(neuralpower, name)) or "")


def test_no_public_function_takes_more_parameters_than_can_be_remembered() -> None:
    functions = [getattr(neuralpower, name) for name in NAMES]
    functions += [value for name, value in vars(LoadedPredictor).items() if inspect.isfunction(value)]
    for function in functions:
        parameters = [name for name in inspect.signature(function).parameters if name != "self"]
        assert len(parameters) <= MOST_PARAMETERS, function


# ---- models and inputs ----


def test_a_shape_stands_for_a_tensor(predictor: LoadedPredictor) -> None:
    given = neuralpower.predict(images(), torch.zeros(2, 3, 16, 16), predictor=predictor)
    for shape in ((2, 3, 16, 16), [2, 3, 16, 16], torch.Size((2, 3, 16, 16))):
        assert neuralpower.predict(images(), shape, predictor=predictor) == given
    assert given.batch_size == 2


def test_shapes_stand_for_several_inputs_in_order_or_by_name(predictor: LoadedPredictor) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            assert mask.dtype == torch.long
            return x * mask

    named = predictor.predict(Two(), {"x": (4, 8), "mask": (4, 8)})
    assert (named.batch_size, named.rows[-1].kind) == (4, "elementwise")
    pair = predictor.predict(nn.Bilinear(8, 8, 4), [(4, 8), (4, 8)])
    assert pair == predictor.predict(nn.Bilinear(8, 8, 4), (torch.zeros(4, 8), torch.zeros(4, 8)))


def test_a_shape_of_a_language_model_is_samples_and_tokens(predictor: LoadedPredictor) -> None:
    bert = "transformers:bert?num_hidden_layers=1&hidden_size=32&num_attention_heads=2&intermediate_size=64"
    assert predictor.predict(bert, (2, 16)) == predictor.predict(bert, batch_size=2, seq_len=16)


@pytest.mark.parametrize(
    ("shape", "keywords", "said"),
    [
        ((0, 3, 16, 16), {}, r"shape \(0, 3, 16, 16\): every size must be 1 or more, the batch first"),
        ((2, 3, 16, 16), {"batch_size": 4}, "begins with a batch of 2, and batch_size is 4; leave"),
        ((2, 3, 16, 16), {"seq_len": 4}, "sizes and inputs are both given"),
    ],
)
def test_an_impossible_shape_is_refused(
    predictor: LoadedPredictor, shape: tuple[int, ...], keywords: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        predictor.predict(images(), shape, **keywords)


def test_functions_are_predicted_with_the_modules_and_tensors_that_they_use(
    predictor: LoadedPredictor,
) -> None:
    layer, weight = nn.Linear(8, 16), torch.ones(16, 4)

    def forward(x: Tensor) -> Tensor:
        return torch.relu(layer(x)) @ weight

    found = predictor.predict(forward, (3, 8))
    assert found.model == "forward"
    assert [row.kind for row in found.rows] == ["linear", "activation", "matmul"]
    assert found.parameters == 8 * 16 + 16
    partial = predictor.predict(functools.partial(nn.functional.linear, weight=torch.ones(4, 8)), (3, 8))
    assert [(row.kind, row.flops) for row in partial.rows] == [("linear", 2 * 3 * 8 * 4)]
    assert predictor.predict(images().forward, (2, 3, 16, 16)).parameters == 7962  # 112 + 7850
    assert layer.weight.device.type == "cpu" and layer.weight.grad is None
    with pytest.raises(ModelError, match="give inputs"):
        predictor.predict(forward)


def test_classes_and_functions_without_arguments_build_a_network(predictor: LoadedPredictor) -> None:
    class Net(nn.Module):
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.layer = nn.Linear(width, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    for model in (Net, lambda: Net(), functools.partial(Net, width=8)):
        assert predictor.predict(model, (3, 8)).parameters == 8 * 4 + 4
    with pytest.raises(ModelError, match="gives a int; it has to return an nn.Module"):
        predictor.predict(lambda: 3, (3, 8))


def test_a_profile_takes_names_shapes_and_functions() -> None:
    named = neuralpower.profile("zoo:deep_mnist", (2, 784), repeat=1, warmup=0)
    assert (named.model, named.input_shape) == ("zoo:deep_mnist", (2, 784))
    shaped = neuralpower.profile(nn.Linear(8, 4), (3, 8), repeat=1, warmup=0)
    assert shaped.total.flops == 2 * 3 * 8 * 4
    with pytest.raises(InputError, match="unknown setting of a profile 'repeats': did you mean repeat"):
        neuralpower.profile(nn.Linear(8, 4), (3, 8), repeats=1)  # type: ignore[call-arg]


# ---- options ----


@pytest.mark.parametrize(
    ("function", "option", "said"),
    [
        ("predict", "batch", "unknown option of predict 'batch': did you mean batch_size"),
        ("predict", "batch_sise", "did you mean batch_size"),
        ("predict", "precision", "unknown option of predict 'precision': did you mean dtype"),
        ("predict", "input_size", "did you mean input_shape"),
        ("predict", "contxt", "unknown option of predict 'contxt': did you mean context"),
        ("sweep", "bs", "unknown option of sweep 'bs': did you mean batch_size"),
        ("fit", "batch", "unknown field of a request 'batch': did you mean batch_size"),
    ],
)
def test_an_unknown_option_is_answered_with_the_one_that_was_meant(
    predictor: LoadedPredictor, function: str, option: str, said: str
) -> None:
    more = {"memory": "1GB"} if function == "fit" else {}
    with pytest.raises(InputError, match=said):
        getattr(neuralpower, function)("zoo:deep_mnist", predictor=predictor, **more, **{option: 8})


# ---- devices ----


def test_a_device_is_answered_as_the_command_line_does_and_read_once() -> None:
    joined = for_device(spec_of("t4"))
    for name in ("t4", "Tesla T4", "nvidia-t4"):
        loaded = neuralpower.load(name)
        assert loaded.name == joined.name
        assert [one.name for one in loaded.predictor.others] == [one.name for one in joined.others]
    assert chosen("t4") is chosen("t4")
    assert chosen("t4").predictor.answers == joined.answers


def test_a_name_that_is_no_device_is_a_predictor() -> None:
    file = known_predictors()["amd-epyc-2c"]
    for name in ("amd-epyc-2c", "AMD EPYC 2c", str(file), file):
        assert repr(neuralpower.load(name)) == repr(LoadedPredictor(read_predictor(file)))
    assert neuralpower.load("nvidia@t4").name == "nvidia@nvidia-t4"
    with pytest.raises(PredictorError, match="unknown predictor 'amd-epyc-3': did you mean"):
        neuralpower.load("amd-epyc-3")


def test_a_device_that_is_no_name_is_refused() -> None:
    with pytest.raises(InputError, match="device 3: must be a name or a file; write 'h100'"):
        neuralpower.predict("zoo:deep_mnist", device=3)
    with pytest.raises(InputError, match="unknown device 'h1000'"):
        neuralpower.predict("zoo:deep_mnist", device="h1000")


def test_one_network_on_two_devices_is_compared(predictor: LoadedPredictor) -> None:
    model = nn.Linear(2048, 2048)
    found = neuralpower.compare(model, device=("h100", "t4"), inputs=(2048, 2048))
    assert (found.a, found.b) == ("Linear on nvidia-h100-sxm5-80gb", "Linear on nvidia-t4")
    assert found.ratio.value < 1
    with pytest.raises(InputError, match="compare needs two networks, or one on two devices"):
        neuralpower.compare(model, predictor=predictor)


def test_several_devices_are_swept() -> None:
    grid = neuralpower.sweep("zoo:deep_mnist", device=["t4", "h100"], batch_size=(1, 2))
    assert [(p.device, p.batch_size) for p in grid.points] == [
        ("nvidia-t4", 1),
        ("nvidia-t4", 2),
        ("nvidia-h100-sxm5-80gb", 1),
        ("nvidia-h100-sxm5-80gb", 2),
    ]


def test_without_a_device_this_machines_memory_is_what_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "own_memory", lambda: 2.0**20)
    assert not neuralpower.fit("zoo:deep_mnist").fits


def test_a_published_dtype_that_is_not_trained_is_replaced_by_the_nearest(
    predictor: LoadedPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "published_dtype", lambda model: "bfloat16")
    found = predictor.predict("zoo:deep_mnist")
    assert found.dtype == "float32"
    assert found.remarks[0].endswith("which amd-epyc-2c does not have; predicted in float32")
    with pytest.raises(PredictorError, match="dtype 'bfloat16'"):
        predictor.predict("zoo:deep_mnist", dtype="bfloat16")


def test_devices_of_this_machine_go_by_torchs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(chosen("cpu")) == repr(chosen(torch.device("cpu"))) == repr(neuralpower.load())
    gpu = SimpleNamespace(name="Tesla T4")
    monkeypatch.setattr("neuralpower.measure.meters.nvml.list_gpus", lambda: [gpu])
    assert chosen("cuda").device == chosen(torch.device("cuda:0")).device == "nvidia-t4"
    with pytest.raises(
        InputError, match="device 'cuda:1': there is no such GPU here; name one, such as h100"
    ):
        chosen("cuda:1")


def test_dtypes_go_by_their_short_names(predictor: LoadedPredictor) -> None:
    h100 = neuralpower.load("h100")
    full = h100.predict(nn.Linear(8, 8), (4, 8), dtype="bfloat16")
    for dtype in ("bf16", torch.bfloat16, "torch.bfloat16"):
        assert h100.predict(nn.Linear(8, 8), (4, 8), dtype=dtype) == full
    assert [p.dtype for p in h100.sweep("zoo:deep_mnist", dtype=["fp16"]).points] == ["float16"]
    assert predictor.fit("zoo:deep_mnist", "1GB", dtype="fp16").memory.weights_bytes == 2 * 11_972_510


def test_a_shape_that_does_not_run_is_explained(predictor: LoadedPredictor) -> None:
    said = (
        r"shape \(3, 16, 16\) is a batch of 3; for one sample of it write \(1, 3, 16, 16\): Sequential: its"
    )
    with pytest.raises(ModelError, match=said):
        predictor.predict(images(), (3, 16, 16))
    with pytest.raises(ModelError, match="^Sequential: its forward raises") as refused:
        predictor.predict(images(), (8, 5, 16, 16))  # five channels are too many in a batch of one, too
    assert "is a batch of" not in str(refused.value)


def test_a_device_of_several_is_named_whole() -> None:
    with pytest.raises(InputError, match="device 'a100' may be nvidia-a100"):
        neuralpower.load("a100")


def test_a_least_coverage_and_a_required_plan_have_a_name_each() -> None:
    how: dict[str, Any] = {"device": "h100", "batch_size": 1}
    assert neuralpower.predict("zoo:deep_mnist", min_coverage=0.0, **how).coverage >= 0
    with pytest.raises(CoverageError, match=r"is below 100\.0%.*lower min_coverage"):
        neuralpower.predict(Spectrum(), (2, 64), min_coverage=1.0, device="h100")
    with pytest.raises(InputError, match="min_coverage 95: a share must lie between 0 and 1"):
        neuralpower.predict("zoo:deep_mnist", min_coverage=95, **how)
    with pytest.raises(InputError, match=r"strict 0\.9: means two things; write min_coverage"):
        neuralpower.predict("zoo:deep_mnist", **how, **{"strict": 0.9})
    with pytest.warns(FutureWarning, match="strict is now require_plan"):
        neuralpower.predict("zoo:deep_mnist", **how, **{"strict": True})
    with pytest.warns(FutureWarning, match="strict is now require_plan"):
        neuralpower.fit("zoo:deep_mnist", **how, **{"strict": False})


def test_lengths_of_samples_and_of_requests_have_a_name_each() -> None:
    grid = neuralpower.sweep("transformers:bert?num_hidden_layers=1", device="h100", seq_len=(8, 16))
    assert [point.seq_len for point in grid.points] == [8, 16]
    old_name: dict[str, Any] = {"lengths": (8, 16)}
    with pytest.warns(FutureWarning, match="lengths is now seq_len"):
        old = neuralpower.sweep("transformers:bert?num_hidden_layers=1", device="h100", **old_name)
    assert old.points == grid.points


class Spectrum(nn.Module):
    """A transform of which no layer kind knows the time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X [batch, width] -> the absolute values of its spectrum."""
        return torch.fft.rfft(x).abs()
