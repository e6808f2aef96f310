"""Files of strangers: data run no code."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import nn

from neuralpower.cli import main
from neuralpower.errors import DatasetError, ModelError
from neuralpower.networks import sources
from neuralpower.networks.sources import base, resolve
from neuralpower.prediction.explore.score import score

CODE = """import pathlib
from torch import nn
pathlib.Path({marker!r}).touch()
def net():
    return nn.Linear(4, 4)
"""
ANSWER = (
    "would run code, and a file of data may name "
    "hf:, diffusers:, transformers:, torchvision:, timm:, zoo: or a config.json alone"
)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, which is the working folder, with evil.py; whoever imports it makes a file `ran` there."""
    (tmp_path / "evil.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    return tmp_path


def neuralpower(*arguments: str) -> int:
    """Exit code of the program, run here."""
    sys.argv = ["neuralpower", *arguments]
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def told(capsys: pytest.CaptureFixture[str], start: str = "error: ") -> str:
    """The one line on stderr that begins like that."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith(start)]
    return line


def dataset(folder: Path, model: str, parquet: bool = False) -> Path:
    """A dataset whose only table is of networks, one row."""
    place = folder / "given"
    place.mkdir()
    (place / "dataset.json").write_text(json.dumps({"schema": 1, "device": "CPU of a stranger"}))
    rows = pd.DataFrame(
        [{"model": model, "batch": 1, "input": json.dumps({"input_shape": [4]}), "runtime_s": 1e-3}]
    )
    rows.to_parquet(place / "network.parquet") if parquet else rows.to_csv(place / "network.csv", index=False)
    return place


# ---- the rule ----


def test_what_data_may_name_are_the_sources_by_prefix() -> None:
    named = {source.prefix for source in sources.SOURCES if not source.runs_code}
    assert named == {"", "hf", "diffusers", "transformers", "torchvision", "timm", "zoo"}, (
        "decide whether data may name the new source"
    )


@pytest.mark.parametrize(
    "model",
    [
        "evil.py:net",
        "./evil.py:net",
        "../evil.py:net?width=3",
        "evil:net",
        "os:system",
        " zoo:alexnet",  # a blank makes it the function `alexnet` of a module
        "Zoo:alexnet",
        "net.pt2",
        "net.pt2?a=1",
        "zoo/../evil.py:net",
        "http://example.org/evil.py:net",
        r"C:\evil.py:net",
    ],
)
def test_a_model_that_runs_code_is_none_of_datas(model: str) -> None:
    with pytest.raises(ModelError) as refused:
        base.check_model(model, "list.txt:3")
    assert str(refused.value).startswith(f"list.txt:3: model {model!r} {ANSWER}")
    assert "--trust-code" in str(refused.value)
    base.check_model(model, "list.txt:3", trust_code=True)


@pytest.mark.parametrize(
    "model",
    [
        "zoo:alexnet",
        "transformers:bert?num_hidden_layers=2",
        "timm:x.py",
        "torchvision:a:b",
        "c.json",
        "resnet",
    ],
)
def test_names_and_configurations_are_datas(model: str) -> None:
    base.check_model(model, "list.txt:3")


@pytest.mark.parametrize("end", ["", ".json", ".pt2", ".py:net"])
@pytest.mark.parametrize("start", ["x" * 5000, "~nobody-of-that-name/x", "a\0b", "\ud800"])
def test_what_can_be_no_file_is_refused_all_the_same(start: str, end: str) -> None:
    with pytest.raises(ModelError):
        resolve(start + end)


# ---- every file of data ----


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize("model", ["evil.py:net", "evil:net", "evil.pt2"])
def test_a_dataset_runs_no_code(
    hostile: Path, model: str, parquet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    given = dataset(hostile, model, parquet)
    assert neuralpower("train-predictor", str(given), "--out", str(hostile / "learnt.json")) == 2
    line = told(capsys)
    assert f"{given}: network line 2: model {model!r} {ANSWER}" in line
    assert "--trust-code" in line
    assert not (hostile / "ran").exists()


def test_a_dataset_that_is_trusted_is_traced(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = dataset(hostile, "evil.py:net")
    neuralpower("train-predictor", str(given), "--out", str(hostile / "learnt.json"), "--trust-code")
    assert ANSWER not in told(capsys)  # which says that one row is too few
    assert (hostile / "ran").exists()


def test_a_row_with_its_layers_names_whatever_it_likes(hostile: Path) -> None:
    from neuralpower.learn.networks.network_rows import read_totals

    layers = json.dumps([["linear", {"rows": 1, "in_features": 4, "out_features": 4, "bias": True}, 1]])
    row = {"model": "evil.py:net", "batch": 1, "input": "{}", "runtime_s": 1e-3}
    (total,), rejected = read_totals(pd.DataFrame([{**row, "layers": layers}]))
    assert (total.model, rejected) == ("evil.py:net", [])
    with pytest.raises(DatasetError, match="network line 2: model 'evil.py:net' would run code"):
        read_totals(pd.DataFrame([row]))
    assert not (hostile / "ran").exists()


@pytest.mark.parametrize("more", [{}, {"changes": {"width": 3}}, {"name": "zoo:alexnet"}])
def test_candidates_run_no_code(
    hostile: Path, more: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    file = hostile / "candidates.jsonl"
    file.write_text("\n" + json.dumps({"model": "evil.py:net", **more}) + "\n")
    assert neuralpower("score", str(file), "--predictor", "amd-epyc-2c") == 2
    line = told(capsys, "Warning: ")
    assert line.startswith(f"Warning: {file} line 2: model 'evil.py:net' {ANSWER}")
    assert not (hostile / "ran").exists()


def test_candidates_that_are_trusted_run(hostile: Path) -> None:
    line = json.dumps({"model": "evil.py:net", "input_shape": [4]})
    (hostile / "candidates.jsonl").write_text(line)
    options = ("--predictor", "amd-epyc-2c", "--trust-code")
    assert neuralpower("score", "candidates.jsonl", *options) == 0
    assert (hostile / "ran").exists()


def test_a_list_of_networks_runs_no_code(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hostile / "list.txt").write_text("# networks\nzoo:deep_mnist 1\nevil.py:net 1\n")
    assert neuralpower("evaluate", "@list.txt", "--predictor", "amd-epyc-2c") == 2
    assert told(capsys).startswith(f"error: list.txt:3: model 'evil.py:net' {ANSWER}")
    assert not (hostile / "ran").exists()


@pytest.mark.parametrize(
    "parameters",
    [
        {"exp.model": "evil.py:net"},
        {"exp": {"model": ["zoo:deep_mnist", "evil.py:net"]}},
        {"pytorch.args": "--model=evil.py:net"},
    ],
)
def test_a_file_of_parameters_runs_no_code(
    hostile: Path, parameters: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    (hostile / "bench.json").write_text(json.dumps({"exp.replica_batch": 1, **parameters}))
    assert neuralpower("bench", "--config", "bench.json", "--out", "results") == 2
    assert told(capsys).startswith(f"error: bench.json: exp.model: model 'evil.py:net' {ANSWER}")
    assert not (hostile / "ran").exists()


def test_a_kept_plan_runs_no_code_but_that_of_models_that_were_typed(hostile: Path) -> None:
    from neuralpower.measure.collect.resume import planned
    from neuralpower.version import __version__

    class NoOne:
        """An executor that is not asked: the plan is there."""

        def __getattr__(self, name: str) -> None:
            raise AssertionError(name)

    key = {"models": ["evil.py:net"]}
    plan = [
        {"kind": "network", "row": {"model": "evil.py:net"}},
        {"kind": "network", "row": {"model": "zoo:alexnet"}},
    ]
    (hostile / "plan.json").write_text(json.dumps({"key": key, "version": __version__, "plan": plan}))
    assert planned(hostile, key, NoOne()) == plan
    plan[0]["row"] = {"model": "other.py:net"}
    (hostile / "plan.json").write_text(json.dumps({"key": key, "version": __version__, "plan": plan}))
    with pytest.raises(
        DatasetError, match="plan.json: task 1: model 'other.py:net' would run code.*; remove plan.json"
    ):
        planned(hostile, key, NoOne())


def test_in_python_too_trust_is_given() -> None:
    import neuralpower as np_

    trained = np_.load("amd-epyc-2c")
    (found,) = trained.score([{"model": "evil.py:net"}])
    assert found.error.startswith(f"model 'evil.py:net' {ANSWER}")
    (found,) = score([{"model": "nowhere.py:net"}], trained.predictor, trust_code=True)
    assert "there is no file nowhere.py" in found.error


# ---- what libraries would fetch or run ----


def test_code_that_a_configuration_names_is_never_run(hostile: Path) -> None:
    inner = {"model_type": "bert", "auto_map": {"AutoModel": "evil.net"}, "_name_or_path": str(hostile)}
    outer = {
        "model_type": "encoder-decoder",
        "trust_remote_code": True,
        "auto_map": {"AutoModel": "evil.net"},
    }
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    values = {
        **outer,
        "encoder": {**inner, **sizes},
        "decoder": {**inner, **sizes},
        "is_encoder_decoder": True,
    }
    (hostile / "config.json").write_text(json.dumps(values))
    source = resolve(str(hostile))
    model: Any = source.build("meta")
    assert type(model).__name__ == "EncoderDecoderModel"
    assert not hasattr(model.config.encoder, "auto_map")
    assert not (hostile / "ran").exists()


@pytest.mark.parametrize(
    "override",
    [
        "attn_implementation=evil/kernel",
        '_attn_implementation="evil/kernel@main:flash"',
        'attn_implementation={"":"evil/kernel"}',
    ],
)
def test_kernels_of_the_hub_are_refused(override: str) -> None:
    with pytest.raises(
        ModelError, match="names a kernel of the hub, which would be fetched and run|unknown field"
    ):
        resolve(f"transformers:bert?{override}")


def test_a_kernel_in_a_nested_configuration_is_refused(tmp_path: Path) -> None:
    values = {
        "model_type": "llava",
        "text_config": {"model_type": "llama", "_attn_implementation": "evil/kernel"},
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match="names a kernel of the hub"):
        resolve(str(tmp_path))


def test_nothing_is_fetched_for_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DPT looks its backbone up on the hub, which a user's process may be allowed to ask."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dpt", "backbone": "evil/backbone"}))
    with pytest.raises(ModelError, match="wants to fetch something from the network, and models are built"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("package", ["torchvision", "timm"])
@pytest.mark.parametrize("override", ["weights=DEFAULT", "pretrained=true", "checkpoint_path=evil.pth"])
def test_no_override_has_weights_loaded(package: str, override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> nn.Module:
        raise AssertionError("built")

    library = types.SimpleNamespace(list_models=lambda: ["tiny"], get_model=never, create_model=never)
    library.models = library
    monkeypatch.setitem(sys.modules, package, library)
    with pytest.raises(
        ModelError, match=f"{override.partition('=')[0]} .*: weights are never loaded; leave it out"
    ):
        resolve(f"{package}:tiny?{override}")


def test_a_torchvision_model_gets_no_backbone_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retinanet's builder fetches those of its backbone by default."""
    asked: list[dict[str, object]] = []

    def retinanet(*, weights: object = None, weights_backbone: object = "IMAGENET1K_V1") -> nn.Module:
        asked.append({"weights": weights, "weights_backbone": weights_backbone})
        return nn.Conv2d(3, 2, 1)

    models = types.SimpleNamespace(
        list_models=lambda: ["retinanet"],
        get_model_builder=lambda name: retinanet,
        get_model=lambda name, **given: retinanet(**given),
    )
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(models=models))
    resolve("torchvision:retinanet").build()
    assert asked[0] == {"weights": None, "weights_backbone": None}
