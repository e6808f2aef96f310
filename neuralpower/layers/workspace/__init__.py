"""Work space of an operator's kernels while they run, besides operands and results.

Each library of kernels has a module with RULES, by operator, and `most_bytes` of a call's blocks. A platform
names the library that it runs (`Platform.library`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from neuralpower.layers.training import Args, Named
from neuralpower.layers.workspace import cudnn, onednn

LIBRARIES: dict[str, ModuleType] = {"onednn": onednn, "cudnn": cudnn}


def workspace_blocks(
    operator: str, args: Args, kwargs: Named, output: Any, library: str = "onednn"
) -> tuple[int, ...]:
    """Bytes of a call's own blocks, one after the other; none where the library has no rule."""
    rule = LIBRARIES[library].RULES.get(operator)
    blocks = rule(output, *args, **kwargs) if rule is not None else ()
    return tuple(int(block) for block in blocks) if any(blocks) else ()


def workspaces(operator: str, args: Args, kwargs: Named, output: Any) -> dict[str, tuple[int, ...]]:
    """Library -> a call's blocks in bytes; libraries that have no rule for it are skipped."""
    found = {name: workspace_blocks(operator, args, kwargs, output, name) for name in LIBRARIES}
    return {name: blocks for name, blocks in found.items() if blocks}


def workspace_bytes(library: str, blocks: tuple[int, ...]) -> int:
    """Bytes that such blocks take beyond inputs and outputs, at most at one time."""
    return int(LIBRARIES[library].most_bytes(blocks))
