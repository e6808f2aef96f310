"""Give this machine's CPU the name in NEURALPOWER_TEST_CPU, in each Python with this folder on its path."""

import os
import re
from pathlib import Path
from typing import Any

NAME = os.environ.get("NEURALPOWER_TEST_CPU")
read_text = Path.read_text


def with_the_name(path: Path, *arguments: Any, **named: Any) -> str:
    """The text of a file, where /proc/cpuinfo has another name in each of its entries."""
    text = read_text(path, *arguments, **named)
    if str(path) != "/proc/cpuinfo":
        return text
    return re.sub(r"^(model name\s*:\s*).*$", lambda found: f"{found[1]}{NAME}", text, flags=re.MULTILINE)


if NAME:
    setattr(Path, "read_text", with_the_name)  # noqa: B010  # of a file of Linux, which no test may write
