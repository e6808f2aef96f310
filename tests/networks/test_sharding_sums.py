"""Work of all ranks adds up to that of the whole network, for transformers' configurations with a plan."""

from __future__ import annotations

import pytest

from tests.networks.sharding_sums import planned, problems

# attention, grouped and fused; norms of all heads; mixtures and latents
SAMPLE = """
    axk2 cohere deepseek_v3 ernie4_5_moe exaone4 gpt_neox granitemoe jais2 llama minimax mixtral olmo2
""".split()
REFUSED = {
    "doge": "its plan splits values whose dynamic mask stays whole",
    "dots3_note_vision_encoder": "its plan names no module of the encoder alone",
    "neomme": "its plan splits heads that a mask of all heads meets",
    "esmc": "its plan splits what a norm of all heads reads",
}
"""Types whose plan does not split the network that was built, and what is in the way."""


@pytest.mark.parametrize("model_type", SAMPLE)
def test_ranks_add_up(model_type: str) -> None:
    assert problems(model_type, planned()[model_type]) == []


@pytest.mark.full
def test_ranks_of_every_plan_add_up() -> None:
    found = {name: problems(name, kind) for name, kind in planned().items() if name not in REFUSED}
    assert {name: said for name, said in found.items() if said} == {}
    assert sum(said == [] for said in found.values()) >= 80  # the others need more than a small configuration
