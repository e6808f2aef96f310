"""`hf:ORG/NAME`: config.json alone, by huggingface_hub, whose errors become one line each."""

import json
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors

from neuralpower.errors import ModelError
from neuralpower.networks.names import hub
from neuralpower.networks.sources import published_dtype, resolve
from neuralpower.networks.sources.base import check_model
from tests.program import done

BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
KIMI = {
    "model_type": "kimi_k2",
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    "num_hidden_layers": 1,
    "hidden_size": 64,
}
Hub = Callable[..., list[tuple[str, str, str | None]]]


def reply(status: int) -> Any:
    """What an error keeps of the hub's answer, whatever the HTTP library."""
    return types.SimpleNamespace(status_code=status, headers={}, request=None)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub that holds the given files, or raises; returns a list of requests."""

    def served(**files: Any) -> list[tuple[str, str, str | None]]:
        asked: list[tuple[str, str, str | None]] = []

        def download(repository: str, file: str, revision: str | None = None) -> str:
            asked.append((repository, file, revision))
            held = files.get(file.partition(".")[0])
            if isinstance(held, Exception):
                raise held
            if held is None:
                raise errors.RemoteEntryNotFoundError("404", response=reply(404))
            path = tmp_path / file
            path.write_text(held if isinstance(held, str) else json.dumps(held))
            return str(path)

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
        hub._known.clear()
        return asked

    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    return served


def test_a_configuration_is_read_and_nothing_else(serve: Hub) -> None:
    asked = serve(config={**BERT, "torch_dtype": "bfloat16"})
    model = resolve("hf:org/name@main").build("meta", torch.float32)
    assert type(model).__name__ == "BertModel"
    assert published_dtype("hf:org/name@main") == "bfloat16"
    assert asked == [("org/name", "config.json", "main"), ("org/name", "hf_quant_config.json", "main")]
    check_model("hf:org/name")


def test_a_part_is_of_a_pipeline(serve: Hub) -> None:
    serve(config=BERT)
    with pytest.raises(ModelError, match="hf:org/name holds no model_index.json"):
        resolve("hf:org/name/vae")


def test_it_is_predicted_as_any_other(serve: Hub) -> None:
    serve(config=BERT)
    said = done("predict", "hf:org/name", "--predictor", "nvidia-t4")
    assert "hf:org/name, forward, batch 1, float32" in said


def test_the_dtype_of_the_text_part_counts(serve: Hub) -> None:
    serve(config={"model_type": "llava", "text_config": {"dtype": "float16"}})
    assert published_dtype("hf:org/name") == "float16"
    serve(config={**BERT, "torch_dtype": "float8_e4m3fn"})
    assert published_dtype("hf:org/name") is None


def test_quantisation_beside_the_configuration_is_read(serve: Hub) -> None:
    serve(config=BERT, hf_quant_config={"quantization": {"quant_algo": "FP8"}})
    assert hub.configuration("org/name")["quantization_config"] == {"quantization": {"quant_algo": "FP8"}}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.GatedRepoError("403", response=reply(403)), "hf:a/b is gated: ask for access"),
        (
            errors.RepositoryNotFoundError("404", response=reply(404)),
            "hf:a/b is not on the hub, or is private",
        ),
        (errors.RevisionNotFoundError("404", response=reply(404)), "hf:a/b has no such revision"),
        (errors.RemoteEntryNotFoundError("404", response=reply(404)), r"hf:a/b holds no config\.json"),
        (errors.LocalEntryNotFoundError("no"), "hf:a/b is not in the cache, and the hub cannot be reached"),
        (errors.OfflineModeIsEnabled("off"), r"hf:a/b cannot be read \(.*off"),
        (ConnectionError("reset"), r"hf:a/b cannot be read \(.*reset\); give a folder with its config\.json"),
        (errors.HFValidationError("bad"), r"hf:a/b cannot be read \(.*bad"),
    ],
)
def test_what_the_hub_refuses_is_one_line(serve: Hub, error: Exception, said: str) -> None:
    serve(config=error)
    with pytest.raises(ModelError, match=said) as raised:
        resolve("hf:a/b")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["bert", "a/b/c", "", "a b/c", "/x", "a/b@@"])
def test_a_name_of_another_form_is_refused(serve: Hub, name: str) -> None:
    asked = serve(config=errors.RevisionNotFoundError("404", response=reply(404)))
    with pytest.raises(ModelError, match="hf:"):
        resolve(f"hf:{name}")
    assert asked == [] or name in ("a/b@@", "a/b/c")  # c may be a part of a pipeline: its index is read


@pytest.mark.parametrize(("held", "said"), [("{", "is not JSON"), ("[1]", "is not an object")])
def test_a_file_that_is_no_configuration_is_refused(serve: Hub, held: str, said: str) -> None:
    serve(config=held)
    with pytest.raises(ModelError, match=said):
        resolve("hf:a/b")


def test_code_of_a_repository_is_never_run_and_the_native_class_is_named(serve: Hub) -> None:
    serve(config=KIMI)
    with pytest.raises(ModelError, match=r"'kimi_k2' \(DeepseekV3ForCausalLM\) is not in .* is never run; "):
        resolve("hf:org/kimi")
    with pytest.raises(ModelError, match=r"hf:org/kimi\?model_type=deepseek_v3 uses its fields"):
        resolve("hf:org/kimi")
    model = resolve("hf:org/kimi?model_type=deepseek_v3").build("meta")
    assert type(model).__name__ == "DeepseekV3ForCausalLM"


def test_an_architecture_that_transformers_lacks_is_named(serve: Hub) -> None:
    serve(config={"model_type": "novel", "architectures": ["NovelForCausalLM"]})
    with pytest.raises(
        ModelError, match=r"'novel' \(NovelForCausalLM\) is not in transformers .*; use a newer"
    ):
        resolve("hf:org/novel")


class Silent:
    """A session of a network whose name server does not answer, or that refuses at once."""

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses
        self.over = threading.Event()

    def head(self, address: str, timeout: float) -> None:
        if not self.refuses:
            self.over.wait()
        raise ConnectionError(address)


@pytest.mark.parametrize("refuses", [True, False])
def test_without_a_network_the_hub_is_asked_once_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    def never(*args: object, **how: object) -> str:
        raise AssertionError("the library tries again for half a minute")

    session = Silent(refuses)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", never)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "PATIENCE_S", 0.01)
    hub._known.clear()
    hub.is_reachable.cache_clear()
    with pytest.raises(
        ModelError, match="the hub cannot be reached .HF_HUB_OFFLINE=1 asks the cache alone.*; "
    ):
        resolve("hf:nobody/nothing")
    session.over.set()
    hub.is_reachable.cache_clear()


def test_what_is_in_the_cache_needs_no_network(
    serve: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = serve(config=BERT)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *name, **how: str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    assert hub.configuration("org/name")["model_type"] == BERT["model_type"]
    assert len(asked) == 2


def test_the_users_offline_switch_holds_and_ours_does_not(
    serve: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    seen: list[bool] = []

    def download(repository: str, file: str, revision: str | None = None) -> str:
        seen.append(constants.HF_HUB_OFFLINE)
        raise errors.LocalEntryNotFoundError("no")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for ours, said in ((False, "HF_HUB_OFFLINE is set"), (True, "the hub cannot be reached")):
        monkeypatch.setattr(hub, "_switched_here", ours)
        hub._known.clear()
        with pytest.raises(ModelError, match=said):
            resolve("hf:a/b")
    assert seen == [True, False]
    assert constants.HF_HUB_OFFLINE is True


def test_another_revision_in_the_cache_is_read_in_the_same_process(
    serve: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cached(repository: str, file: str, revision: str | None = None) -> str | None:
        return str(tmp_path / file) if (tmp_path / file).is_file() else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    asked = serve(config=BERT, hf_quant_config={})
    assert hub.configuration("org/name")["num_hidden_layers"] == BERT["num_hidden_layers"]
    count = len(asked)
    assert hub.configuration("org/name") and len(asked) == count  # known
    (tmp_path / "config.json").unlink()
    serve(config={**BERT, "num_hidden_layers": 7})
    assert hub.configuration("org/name")["num_hidden_layers"] == 7
