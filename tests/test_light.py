"""What a prediction may not cost: libraries that only training, measuring and tables need."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = ("joblib", "matplotlib", "pandas", "plotly", "pyarrow", "scipy", "sklearn", "thop", "transformers")


def test_a_prediction_imports_nothing_that_only_training_and_tables_need() -> None:
    program = (
        "import sys\n"
        "from neuralpower import cli\n"
        "sys.argv = ['neuralpower', 'predict', 'zoo:deep_mnist', '--device', 't4', '--no-cache']\n"
        "try:\n"
        "    cli.main()\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "assert 'torch' in sys.modules\n"
        f"early = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert not early, early\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "deep_mnist" in done.stdout


def test_messages_name_extras_that_there_are() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (table,) = re.findall(r"\[project\.optional-dependencies\]\n(.*?)\n\[", project, re.S)
    extras = set(re.findall(r"^(\w+) = ", table, re.M))
    texts = [file.read_text() for file in (ROOT / "neuralpower").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"neuralpower\[(\w+)\]", text)}
    assert named <= extras
