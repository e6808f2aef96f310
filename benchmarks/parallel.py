"""Several devices: exchanges held out, and whole runs and steps that others measured.

python -m benchmarks.parallel PATH [--section NAME ...] [--system NAME ...] [--ways NAME ...] [--run R]
                              [--predictor NAME]

PATH is the folder of other projects' measurements (see benchmarks/peers.py). A section is a module
`benchmarks/parallel_NAME.py` with a function of that name, which prints a table.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.gpu_tables import SYSTEMS
from benchmarks.parallel_collectives import WAYS

PREFIX = "parallel_"


def sections() -> list[str]:
    """Names of the modules beside this one."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX))


def main() -> None:
    """Print the sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", help="the folder of other projects' measurements")
    parser.add_argument("--section", nargs="+", choices=sections(), default=sections())
    parser.add_argument("--system", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="of collectives")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="of holding out")
    parser.add_argument(
        "--run", default="eager", help="how Megatron's steps run: eager, as its own, or compile"
    )
    parser.add_argument("--predictor", help="of one thread of this machine, for the section gloo")
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.parallel needs a folder of other projects' measurements: left out")
        return
    for name in given.section:
        module: Any = importlib.import_module(f"benchmarks.{PREFIX}{name}")
        getattr(module, PREFIX + name)(given)


if __name__ == "__main__":
    main()
