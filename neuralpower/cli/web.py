"""`neuralpower web`: a page on this machine, whose charts follow its controls."""

from __future__ import annotations

import importlib.util
import os
from typing import Annotated

from typer import Option, Typer

from neuralpower.cli import waiting
from neuralpower.cli.commands import TrustCode, examples
from neuralpower.cli.output import tell
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

app = Typer()
NEEDED = {"starlette": "starlette", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}


@app.command(epilog=examples("neuralpower web", "neuralpower web --port 8080 --trust-code"))
def web(
    port: Annotated[int, Option(help="Port on this machine; 0: any free one.", min=0, max=65_535)] = 8421,
    trust_code: TrustCode = False,
) -> None:
    """Serve a page on this machine alone, whose charts follow its controls; Ctrl-C ends it."""
    if missing := [package for name, package in NEEDED.items() if importlib.util.find_spec(name) is None]:
        raise InputError(
            f"the page needs {', '.join(missing)}, which are not installed; pip install {' '.join(missing)}"
        )
    from neuralpower.web.server import bound, serve

    def ready(address: str) -> None:
        waiting.end()
        tell(f"Open {address} in a browser; Ctrl-C ends it.")

    listening = bound(port)
    stage("importing torch and transformers")
    try:
        serve(listening, trust_code=trust_code, ready=ready)
    except KeyboardInterrupt:
        from neuralpower.cli import INTERRUPTED

        os._exit(INTERRUPTED)  # at once: a thread may be following a model, which nobody waits for
