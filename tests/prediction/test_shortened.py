"""Which blocks of a network repeat, and networks with fewer of them."""

import pytest
import torch
from torch import nn

from neuralpower.networks.sources import resolve
from neuralpower.prediction.fits.shortened import Repeated, blocks_in, repeated, shortened


class Block(nn.Module):
    """A block that knows its number, and slides or does not."""

    def __init__(self, number: int, width: int, slides: bool) -> None:
        super().__init__()
        self.number, self.slides = number, slides
        self.inner = nn.Linear(width, width)


def network(slides: str, widths: dict[int, int] | None = None) -> nn.Module:
    """`slides` has one letter for each block: s for those that slide."""
    module = nn.Module()
    blocks = [Block(i, (widths or {}).get(i, 8), letter == "s") for i, letter in enumerate(slides)]
    module.blocks = nn.ModuleList(blocks)
    return module


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (network("ffffff"), Repeated("blocks", 6)),
        (network("sfsfsfsf"), Repeated("blocks", 8, each=2)),
        (network("sssfsssfss"), Repeated("blocks", 10, each=4)),
        (network("ffffff", {0: 4}), Repeated("blocks", 6, lead=1)),
        (network("ffsfsff"), Repeated()),
        (nn.Linear(2, 2), Repeated()),
    ],
)
def test_blocks_repeat_in_groups(module: nn.Module, found: Repeated) -> None:
    assert repeated(module) == found


def test_a_part_of_a_group_stays_at_the_end() -> None:
    # ten blocks in groups of four: two groups, and two blocks more
    found = Repeated("blocks", 10, each=4)
    assert (found.groups, found.with_groups(1), found.with_groups(3)) == (2, 6, 14)


def test_blocks_are_equal_where_groups_are_single_blocks() -> None:
    assert blocks_in(network("ffffff")) == ("blocks", 6)
    assert blocks_in(network("sfsfsf")) == ("", 0)


def test_a_shortened_mamba_has_fewer_blocks() -> None:
    # its configuration derives the sorts of its layers from their number
    source = resolve("mamba-130m")
    built = (one.build("meta", torch.float32) for one in (source, shortened(source, 3)))
    assert [len(network.get_submodule("backbone.layers")) for network in built] == [24, 3]
