"""Passes of deep networks from shallow ones, against the deep networks' own."""

from bisect import bisect_left
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

from neuralpower.devices.cluster import Cluster, Layout
from neuralpower.devices.spec import find_spec
from neuralpower.networks.decoder import pass_of
from neuralpower.networks.phases import Phase
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.platforms import PLATFORMS
from neuralpower.prediction.fits.probe import Probe
from neuralpower.prediction.fits.shallow import SHORT, IrregularError, Passed, Shallow, repeats, with_more
from neuralpower.prediction.memory.peak import training_memory
from neuralpower.trace.lifetimes import StepLifetimes, Storage
from neuralpower.trace.recipe import Recipe
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace
from tests.asking import requested

CLUSTER = Cluster(find_spec("h100-sxm"), 2)
NVIDIA, DEEP = PLATFORMS["nvidia"], 7


def llama(blocks: int, width: int = 32) -> nn.Module:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def step(model: nn.Module, tokens: int = 5, **how: object) -> Passed:
    ids = torch.zeros(2, tokens, dtype=torch.int64, device="meta")
    found = training_lifetimes(model, (), {"input_ids": ids}, platform=NVIDIA, **how)
    return Passed(found, found.end)


def decoding(module: nn.Module, context: int = 12) -> Passed:
    source = resolve(module)
    about = InputRequest(2, None, None, torch.float32)
    one = pass_of(source, about, Phase.decode(context=context), source.build("meta", torch.float32))
    found = trace(one.module, one.inputs.args, one.inputs.kwargs)
    return Passed(found, len(found.every_call))


def deepened(four: Passed, five: Passed, deep: int) -> Passed:
    """The pass of a network with `deep` blocks."""
    text = with_more(four.text, repeats(four.text, five.text), deep - SHORT)
    return four.of_text(text, four.calls + (deep - SHORT) * (five.calls - four.calls))


@pytest.mark.parametrize(
    "how",
    [
        {"optimizer": "adamw"},  # all temporaries of a call at once
        {"optimizer": "adamw:loop"},  # parameter by parameter
        {"optimizer": "adamw:fused", "checkpointing": True},
        {"optimizer": "momentum", "accumulation": 2},
    ],
    ids=lambda how: "-".join(map(str, how.values())),
)
def test_a_step_of_a_deep_network_follows_exactly(how: dict[str, object]) -> None:
    four, five, deep = (step(llama(blocks), **how) for blocks in (SHORT, SHORT + 1, DEEP))
    found = deepened(four, five, DEEP)
    assert isinstance(found.found, StepLifetimes)
    assert isinstance(deep.found, StepLifetimes)
    assert found.every_call == deep.every_call
    assert found.calls == deep.calls
    assert training_memory(found.found, platform=NVIDIA) == training_memory(deep.found, platform=NVIDIA)


def test_times_are_ranks_of_the_calls_that_make_or_free_memory() -> None:
    four, five, deep = (step(llama(blocks), optimizer="sgd") for blocks in (SHORT, SHORT + 1, DEEP))
    found, whole = deepened(four, five, DEEP).found, deep.found
    assert isinstance(found, StepLifetimes)
    assert isinstance(whole, StepLifetimes)
    times = sorted({time for one in whole.storages for time in (one.birth, one.death) if time})
    ranks: dict[int | None, int | None] = {0: 0, None: None}
    ranks |= {time: rank for rank, time in enumerate(times, 1)}
    lives = [(ranks[one.birth], ranks[one.death], one.bytes, one.part) for one in whole.storages]
    assert [(one.birth, one.death, one.bytes, one.part) for one in found.storages] == lives
    assert found.passes == tuple(bisect_left(times, end + 1) for end in whole.passes)
    assert found.end == bisect_left(times, whole.end + 1)


def test_a_decoders_step_follows_with_its_cache() -> None:
    for context in (12, 40):
        found = deepened(decoding(llama(SHORT), context), decoding(llama(SHORT + 1), context), DEEP)
        assert found.text == decoding(llama(DEEP), context).text


def test_another_length_needs_no_second_network() -> None:
    seen: list[int] = []

    def run(context: int, module: Any) -> Passed:
        seen.append(module)
        return decoding(llama(module), context)

    shallow = Shallow(llama(3 * SHORT), lambda blocks: blocks, NVIDIA, {"decode": True})  # type: ignore[return-value]
    for context in (12, 40):
        found = shallow.by_few("decode", partial(run, context))
        assert found is not None
        assert found.text == decoding(llama(3 * SHORT), context).text
    assert seen == [SHORT, SHORT + 1, SHORT]


class Wider(nn.Module):
    """Blocks of which each makes more than the one before."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = torch.cat([block(x), *[x] * number], 0)
        return x


def test_a_cache_that_begins_where_the_weights_end_follows() -> None:
    def opt(blocks: int) -> nn.Module:
        sizes = {"hidden_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32, "num_attention_heads": 4}
        with torch.device("meta"):
            return OPTForCausalLM(OPTConfig(vocab_size=96, num_hidden_layers=blocks, **sizes))

    four, five, seven = (decoding(opt(blocks)) for blocks in (SHORT, SHORT + 1, DEEP))
    assert deepened(four, five, DEEP).text == seven.text


def test_blocks_that_make_ever_more_are_refused() -> None:
    four, five = (Passed(trace(Wider(n), (torch.zeros(1, 8),)), 99).text for n in (4, 5))
    with pytest.raises(IrregularError):
        repeats(four, five)


def test_a_pass_in_which_memory_dies_in_another_order_is_refused() -> None:
    one = Storage(1, None, 8, "activations")
    few, more = (((((), ((one, at),)),),) for at in (-1, -2))
    with pytest.raises(IrregularError):
        repeats(few, more)


def test_a_pass_that_makes_other_memory_is_looked_at_anew() -> None:
    checkpointing = [False]

    def run(module: Any) -> Passed:
        seen.append(module)
        return step(llama(module), optimizer="sgd", checkpointing=checkpointing[0])

    seen: list[int] = []
    shallow = Shallow(llama(3 * SHORT), lambda blocks: blocks, NVIDIA, {"training": True})  # type: ignore[return-value]
    for checkpointing[0] in (False, True):
        whole = step(llama(3 * SHORT), optimizer="sgd", checkpointing=checkpointing[0])
        found = shallow.by_few("training", run)
        assert found is not None
        assert (found.every_call, found.calls) == (whole.every_call, whole.calls)
    assert seen == 2 * [SHORT, SHORT + 1]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"phase": "training"},
        {"weights": "int4"},
        {"phase": "decode", "context": 12, "layout": Layout(tensor=2), "cluster": CLUSTER},
    ],
    ids=["forward", "training", "weights in 4 bits", "tensor ranks"],
)
def test_a_deep_network_takes_what_its_whole_trace_takes(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    length = {} if "context" in asked else {"seq_len": 8}
    request = requested(llama(3 * SHORT, 128), 2, platform=NVIDIA, **length, **asked)
    probe = Probe(request)
    found = [probe(2, 8), probe(3, 16)]  # with quantised weights, the first is followed whole
    assert probe.shallow.network.cache_info().currsize == 2
    monkeypatch.setattr(Shallow, "by_few", lambda self, name, run: None)
    whole = Probe(request)
    assert [whole(2, 8), whole(3, 16)] == found
    assert whole._calls == probe._calls
    assert whole.quantised == probe.quantised


class Late(nn.Module):
    """Equal blocks, of which a later one is used in its own way."""

    def __init__(self, counted: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3 * SHORT))
        self.number = len(self.blocks) if counted else 0

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for number in range(self.number or len(self.blocks)):
            x = self.blocks[number](x)
            if number == 2 * SHORT:
                x = torch.cat([x, x])[: len(x)] + 1
                kept.append(x)
        return torch.cat(kept)


@pytest.mark.parametrize("counted", [False, True], ids=["does more later", "needs all its blocks"])
def test_a_network_that_does_other_things_later_is_followed_whole(
    counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = requested(Late(counted), input_shape=(64,), platform=NVIDIA)
    found = [Probe(request)(batch, None) for batch in (2, 4096)]
    probe = Probe(request)
    assert [probe(batch, None) for batch in (2, 4096)] == found
    assert probe.shallow.useful
    assert not any(probe.shallow.agreements().values())


def test_changes_of_a_request_trust_what_was_seen_of_its_network() -> None:
    request = requested(llama(3 * SHORT), 2, 8, phase="training", platform=NVIDIA)
    probe = Probe(request)
    probe(2, 8), probe(3, 8)
    assert probe.shallow.agreements() == {"training": True}
    changed = replace(request, recipe=Recipe(checkpointing=True))
    assert Probe(changed, probe)(2, 8) == Probe(changed)(2, 8)


def test_other_weights_are_looked_at_anew() -> None:
    request = requested(llama(3 * SHORT, 128), 2, 8, platform=NVIDIA)
    probe = Probe(request)
    probe(2, 8), probe(3, 8)
    assert probe.shallow.agreements() == {"forward": True}
    assert Probe(replace(request, dtype="float16"), probe).shallow.agreements() == {"forward": True}
    assert Probe(replace(request, weights="int4"), probe).shallow.agreements() == {}
