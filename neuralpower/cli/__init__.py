"""The command line: one file per command; torch is imported inside the commands only."""

from __future__ import annotations

import sys

import click
import typer

from neuralpower import __version__
from neuralpower.errors import NeuralPowerError

app = typer.Typer(
    name="neuralpower", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Latency of neural networks, layer by layer, without running them.",
)  # fmt: skip


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"neuralpower {__version__}")
        raise typer.Exit


@app.callback()
def root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it.")) -> None:
    """Latency of neural networks, layer by layer, without running them."""


def main() -> None:
    """Run the program; an error of ours is one line on stderr, and its class the exit code."""
    from neuralpower.cli import collect, devices, evaluate, predict, train

    for command in (collect, train, predict, evaluate, devices):
        command.register(app)
    try:
        code = app(standalone_mode=False)
    except NeuralPowerError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        code = error.exit_code
    except click.exceptions.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        print("interrupted; what was measured is kept", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        code = 0
        sys.stderr.close()
    sys.exit(code if isinstance(code, int) else 0)
