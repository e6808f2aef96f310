"""What a prediction may not cost: libraries that only training, measuring and tables need are imported late."""

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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "deep_mnist" in done.stdout
