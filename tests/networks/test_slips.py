"""Mistakes that everybody makes with the name of a model: each is answered with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuralpower.errors import ModelError
from neuralpower.networks.names.slips import meant
from neuralpower.networks.sources import check_known

NET = """
import torch

raise SystemExit("this file is not to be run")

def build(): ...
def _hidden(): ...
class Other: ...
class Net(torch.nn.Module): ...
"""


def refused(model: str) -> str:
    with pytest.raises(ModelError) as caught:
        check_known(model)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "way_out"),
    [
        ("AlexNet", "did you mean zoo:alexnet"),
        (
            "zoo_alexnet.pth",
            "weights alone are not a network; give the code that builds it: path/file.py:Name",
        ),
        ("some-org/some-net", "for a model of the Hugging Face hub write hf:some-org/some-net"),
        (
            "my-org/Llama-3.1-8B",
            "write hf:my-org/Llama-3.1-8B, or llama-3.1-8b, which `neuralpower models` has",
        ),
        ("my-org/Lama-3.1-8B", "or llama-3.1-8b, which `neuralpower models` has"),
        ("absent.py", "there is no file absent.py; give an existing path/file.py:Name"),
        ("lenet5x", "MODEL is a folder"),
    ],
)
def test_a_text_that_names_no_model_is_answered_with_what_it_may_mean(model: str, way_out: str) -> None:
    assert way_out in refused(model)


def test_a_file_is_answered_with_what_it_defines_and_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    shape = " with --input-shape, such as 3x224x224"
    assert refused("net.py").endswith(
        f"; choose what builds it: net.py:Net, net.py:build or net.py:Other{shape}"
    )
    Path("net.py").write_text(f"{NET}\ndef example_inputs(batch_size): ...\n")
    assert refused("net.py").endswith("net.py:build or net.py:Other")
    assert refused("net.py:Nett") == "unknown function in net.py 'Nett': did you mean Net?"
    check_known("net.py:_hidden")  # whatever the file defines can be asked for
    Path("net.py").write_text("x = 1")
    assert "net.py defines no class and no function" in refused("net.py")
    Path("net.py").write_text("def (")
    assert "net.py cannot be read as Python" in refused("net.py")
    check_known("net.py:Net")  # the import will say more
    Path("net.py").write_text("from torchvision.models import *")
    check_known("net.py:resnet18")


def test_names_of_torchvision_are_read_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "torchvision" / "models"
    folder.mkdir(parents=True)
    (tmp_path / "torchvision" / "__init__.py").write_text("raise SystemExit")
    (folder / "maxvit.py").write_text(
        "@register_model()\n@handle_legacy_interface()\ndef maxvit_t(x): ...\ndef other(): ..."
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert meant("MaxViT-T") == "did you mean torchvision:maxvit_t?"
    assert meant("other") == ""
