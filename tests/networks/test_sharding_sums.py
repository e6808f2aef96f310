"""Work of all ranks adds up to that of the whole network, for transformers' configurations with a plan."""

from __future__ import annotations

import pytest

from tests.networks.sharding_sums import planned, problems

# attention, grouped and fused; norms of all heads; mixtures, latents, states; what other files do not have
SAMPLE = """
    axk2 cohere ernie4_5_moe exaone4 gpt_neox granitemoe llama longcat_flash mixtral olmo2 phi3 qwen3_next
""".split()
REFUSED = {
    "doge": "its plan splits values whose dynamic mask stays whole",
    "esmc": "its plan splits what a norm of all heads reads",
}
"""Types whose own plan does not run: transformers' ranks would raise as well."""


@pytest.mark.parametrize("model_type", SAMPLE)
def test_ranks_add_up(model_type: str) -> None:
    assert problems(model_type, planned()[model_type]) == []


@pytest.mark.full
def test_ranks_of_every_plan_add_up() -> None:
    found = {name: problems(name, kind) for name, kind in planned().items() if name not in REFUSED}
    assert {name: said for name, said in found.items() if said} == {}
    assert (
        sum(said == [] for said in found.values()) >= 110
    )  # the others need more than a small configuration
