"""A device is named as people name it, wherever a command asks for one."""

import json

import pytest

from neuralpower.devices.names import matching
from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError, PredictorError
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.unmeasured.any_device import for_device
from tests.program import done, run

LAYERS = ("zoo:alexnet", "--top", 1)


def test_predict_takes_a_device_alone() -> None:
    lines = done("predict", *LAYERS, "--device", "4090").splitlines()
    assert "on nvidia-rtx-4090" in next(line for line in lines if not line.startswith("Warning: "))


def test_devices_shows_the_sheet_of_a_name_alone() -> None:
    shown = done("devices", "4090")
    assert shown == done("devices", "--spec", "nvidia-rtx-4090") and "RTX 4090" in shown


def test_a_backward_pass_that_was_not_measured_names_the_training_that_works() -> None:
    ran = run("predict", *LAYERS, "--device", "t4", "--phase", "backward")
    assert (ran.code, ran.err.strip().count("\n")) == (2, 0)
    assert "or --phase training, whose backward pass is estimated from forward products" in ran.err
    assert done("predict", *LAYERS, "--device", "t4", "--phase", "training")


def test_devices_of_two_kinds_are_referred_to_a_ranking() -> None:
    ran = run("compare", "zoo:alexnet", "zoo:vgg16", "--devices", "t4,4090")
    assert ran.err.strip().endswith("neuralpower rank MODEL --device t4,4090")


def test_a_resolution_of_no_pipeline_names_the_shape_of_its_pictures() -> None:
    ran = run("predict", *LAYERS, "--resolution", "640x480")
    assert (ran.code, ran.out) == (2, "") and "its pictures have --input-shape 3x480x640, or" in ran.err


def test_a_predictor_may_be_named_by_its_device() -> None:
    assert load("t4").device == load("nvidia-t4").device
    assert load("H100-SXM").name == "nvidia-h100-sxm5-80gb"
    assert load("nvidia-float32@l40s").name == "nvidia-float32@nvidia-l40s"


def test_a_device_with_a_predictor_of_its_own_gets_that() -> None:
    assert for_device(find_spec("t4")).regressors.keys() == load("nvidia-t4").regressors.keys()
    assert for_device(find_spec("rtx 5090")).name == "nvidia-rtx-5090"


def test_what_fits_several_or_none_is_refused() -> None:
    with pytest.raises(
        InputError, match="device 'v100 sxm' may be nvidia-v100-sxm2-16gb, nvidia-v100-sxm2-32gb"
    ):
        load("v100 sxm")
    with pytest.raises(PredictorError, match="unknown predictor 'h1000'"):
        load("h1000")
    ran = run("predict", *LAYERS, "--device", "a100")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: device 'a100' may be nvidia-a100-80gb-pcie, ")


def test_compare_says_of_two_devices_what_predict_says_of_each() -> None:
    sides = json.loads(done("compare", "zoo:alexnet", "--device", "h100,b200", "--json"))
    for side, device in (("a", "h100"), ("b", "b200")):
        said = json.loads(done("predict", "zoo:alexnet", "--device", device, "--json"))
        assert sides[side]["runtime_s"] == said["runtime_s"]


def test_compare_sweep_and_fit_take_it_too() -> None:
    both = done("compare", "zoo:alexnet", "@l40s", "--device", "h100", "--clock", "1200MHz")
    assert "on nvidia-l40s" in both, "in a type that its own predictor has no rows of"
    both = done("compare", "zoo:alexnet", "--device", "t4,l4")
    assert "on nvidia-t4" in both and "on nvidia-l4" in both
    assert "give another model, or two devices" in run("compare", "zoo:alexnet").err
    assert "on nvidia-l4, nvidia-l40s" in done("sweep", "zoo:alexnet", "--device", "l4,l40s")
    assert "eager, on NVIDIA H100-SXM5-80GB\n" in done("fit", "zoo:alexnet", "--device", "h100")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("big red", ["big-red"]),
        ("BIGRED", ["big-red"]),
        ("red big", ["big-red"]),
        ("big", ["big-blue", "big-red"]),
        ("8g", ["small-8gb"]),
        ("nvidia", []),
        ("!", []),
    ],
)
def test_names_match_in_steps(wanted: str, found: list[str]) -> None:
    assert matching(wanted, {"big-red": (), "big-blue": (), "small-8gb": ("Small",)}) == found
