"""Trust: a model that a user types may run code; one in a file of data must not, unless the user allows it.

A file of data is a dataset's table, a journal, a list of candidates, a plan, a JSON file of parameters. It
may name a network that a library or neuralpower itself defines, and a configuration, which is read as JSON
and runs nothing. Functions import a file or a package, and an exported program is executed: each source says
so (`runs_code`).
"""

from __future__ import annotations

from neuralpower.errors import ModelError
from neuralpower.networks.sources.base import SOURCES, Given, recognised

OPTION = "--trust-code"


def check_model(model: str, where: str = "", trust_code: bool = False) -> None:
    """Raise ModelError where a model that data name would run code; `where` it stands begins the message."""
    source = recognised(Given(str(model)))
    if not trust_code and source is not None and source.runs_code:
        names = ", ".join(f"{source.prefix}:" for source in SOURCES if source.prefix and not source.runs_code)
        raise ModelError(
            f"{where and f'{where}: '}model {str(model)!r:.100} would run code, and a file of data may name "
            f"{names} or a config.json alone; if you trust it, give {OPTION} (in Python trust_code=True)"
        )
