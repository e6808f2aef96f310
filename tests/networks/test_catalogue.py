"""Models by the names that people use: each can be built, and has the size that its maker prints."""

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from neuralpower.cli import parsing
from neuralpower.dtypes import NETWORK_DTYPES
from neuralpower.errors import InputError, ModelError
from neuralpower.networks.diffusion.classes import CLASS, network_source
from neuralpower.networks.diffusion.pipelines import described
from neuralpower.networks.names.catalogue import TASKS, Entry, catalogue, find_entry, model_words, named
from neuralpower.networks.sources import published_dtype, resolve
from neuralpower.networks.sources.base import check_model
from tests.program import done, run

CLOSE = 0.015  # of what a maker prints, often rounded; a head that is shared is told in a note
SAMPLE = ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-2-2b", "bert-base-uncased", "t5-small", "resnet-50"]
SAMPLE += ["clip-vit-base-patch32", "whisper-tiny", "wav2vec2-base-960h", "mamba-130m", "swin-tiny"]


def parameters(entry: Entry) -> int:
    """The parameters of the network that is built from an entry, of a pipeline those of its denoisers."""
    if CLASS in entry.config:
        pipeline = described(entry.name, entry.config)
        parts = (network_source(entry.name, pipeline.parts[role]) for role in pipeline.denoisers)
        return sum(each.numel() for part in parts for each in part.build().parameters())
    fields = {key: value for key, value in entry.config.items() if key != "quantization_config"}
    config = transformers.CONFIG_MAPPING[fields["model_type"]](**fields)
    without_values = importlib.import_module("transformers.initialization").no_init_weights
    with without_values(), torch.device("meta"):
        model = getattr(transformers, fields["architectures"][0])(config)
    model.tie_weights()
    return sum(each.numel() for each in model.parameters())


def test_many_models_of_every_task_are_listed() -> None:
    tasks = [entry.task for entry in catalogue().values()]
    assert len(tasks) >= 120
    assert set(tasks) == set(TASKS)
    assert tasks.count("language") >= 60


def test_entries_are_well_formed_and_no_two_share_a_name() -> None:
    owners: dict[str, str] = {}
    for name, entry in catalogue().items():
        assert entry.task in TASKS, name
        assert entry.dtype in NETWORK_DTYPES, name
        assert entry.config.get("architectures") or entry.source, name
        for label in {"".join(model_words(label)) for label in (name, *entry.aliases) if "/" not in label}:
            assert owners.setdefault(label, name) == name, label


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.full)])
def test_a_model_has_the_parameters_that_its_maker_prints(step: int) -> None:
    off = {}
    for name, entry in itertools.islice(catalogue().items(), 0, None, step):
        share = parameters(entry) / entry.parameters - 1
        if abs(share) > (0.25 if entry.note else CLOSE):
            off[name] = share
    assert off == {}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_is_built_under_its_name(name: str) -> None:
    model = resolve(name).build("meta", torch.bfloat16)
    built = sum(each.numel() for each in model.parameters())
    assert built == pytest.approx(catalogue()[name].parameters, rel=CLOSE)


def test_quantisation_is_kept_as_published() -> None:
    block = catalogue()["deepseek-v3"].config["quantization_config"]
    assert (block["quant_method"], block["weight_block_size"]) == ("fp8", [128, 128])
    assert catalogue()["gpt-oss-120b"].quantisation == "mxfp4"
    assert catalogue()["llama-3.1-8b"].quantisation is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("unsloth/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama3.1:8b", "llama-3.1-8b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("qwen3-30b", "qwen3-30b-a3b"),
        ("deepseek-v3", "deepseek-v3"),
        ("DeepSeek R1", "deepseek-r1"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("gemma3:27b", "gemma-3-27b"),
        ("resnet50", "resnet-50"),
        ("openai/whisper-large-v3", "whisper-large-v3"),
        ("kimi", "kimi-k2"),
    ],
)
def test_a_model_is_found_by_any_usual_spelling(text: str, name: str) -> None:
    assert find_entry(text).name == name
    assert published_dtype(text) == catalogue()[name].dtype


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mixtral", "model 'mixtral' may be mixtral-8x22b, mixtral-8x7b; choose one of them"),
        ("llama", r"model 'llama' may be .* and \d+ more; choose one of them"),
        ("lama-3.1-8b", "unknown model 'lama-3.1-8b': did you mean llama-3.1-8b"),
    ],
)
def test_a_name_of_several_or_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        resolve(text)
    ran = run("predict", text)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("text", ["nobody/gpt2", "./gpt2", "models/gpt2", "net.py:gpt2", "zoo", ""])
def test_other_texts_are_left_to_other_sources(text: str) -> None:
    assert named(text) == []


def test_a_folder_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        resolve("gpt2")


def test_fields_can_be_changed_and_data_may_name_it() -> None:
    small: Any = resolve("llama-3.1-8b?num_hidden_layers=2").build("meta")
    assert len(small.model.layers) == 2
    check_model("llama-3.1-8b")


def test_the_published_dtype_is_the_usual_one(capsys: pytest.CaptureFixture[str]) -> None:
    few = "smollm2-135m?num_hidden_layers=2"
    assert "forward, batch 1, bfloat16" in done("predict", few, "--predictor", "nvidia-h200-sxm-141gb")
    ran = run("predict", few, "--predictor", "nvidia-t4")
    assert "forward, batch 1, float32" in ran.out
    assert "was published in bfloat16, which nvidia-t4 does not have; predicted in float32" in ran.out
    assert "forward, batch 1, float32" in done("predict", few, "--predictor", "t4", "--dtype", "float32")
    assert parsing.usual_dtype("zoo:alexnet") == "float32"


def test_the_models_are_listed_by_task() -> None:
    listed = done("models", "--task", "speech", "-v").splitlines()
    assert listed[0].split() == ["model", "task", "dtype", "parameters", "published", "as"]
    assert len(listed) == 2 + sum(entry.task == "speech" for entry in catalogue().values())
    found = json.loads(done("models", "llama3.1:8b", "qwen3-?b", "--json"))
    assert [each["name"] for each in found["catalogue"]] == ["llama-3.1-8b", "qwen3-4b", "qwen3-8b"]
    assert found["models"] == []
    assert "kimi-k2" in done("models", "--names").split()
    assert "fp8" in done("models", "deepseek-v3")
    ran = run("models", "--task", "cooking")
    assert (ran.code, "unknown task 'cooking'" in ran.err) == (2, True)


def test_other_errors_still_name_the_grammar() -> None:
    with pytest.raises(InputError, match=r"'xyzzy' is not a folder and names no source; MODEL is "):
        resolve("xyzzy")
