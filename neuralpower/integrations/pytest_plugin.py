"""A marker for pytest: the test's model must stay below limits, as predicted; nothing is run.

@pytest.mark.latency("30ms", device="h100")
def test_the_network_is_fast(predicted):
predicted(Net(), (1, 3, 224, 224))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from neuralpower.ask.keywords import METRICS, ceilings_in
from neuralpower.errors import NeuralPowerError

if TYPE_CHECKING:
    from neuralpower.prediction.prediction import Prediction

MARKER = "latency"
HELP = (
    f"{MARKER}(most, memory=None, energy=None, flops=None, **options): limits of what the fixture "
    "`predicted` predicts; options as of neuralpower.predict"
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", HELP)


@pytest.fixture
def predicted(request: pytest.FixtureRequest) -> Callable[..., Prediction]:
    """A function as `neuralpower.predict`, with the marker's options, that fails above its limits."""
    marker = request.node.get_closest_marker(MARKER)
    options: dict[str, Any] = dict(marker.kwargs) if marker else {}
    most = dict(zip(METRICS, marker.args if marker else (), strict=False))
    most |= {name: options.pop(name) for name in METRICS if name in options}
    limits = {f"max_{name}": text for name, text in most.items() if text is not None}

    def predicted_within(model: Any, inputs: Any = None, **more: Any) -> Prediction:
        import neuralpower
        from neuralpower.prediction.explore.gate import values_of
        from neuralpower.report.results.gates import exceeded

        try:
            ceilings = ceilings_in(limits)
            found = neuralpower.predict(model, inputs, **{**options, **more})
            above = exceeded(values_of(found), ceilings)
        except NeuralPowerError as error:
            pytest.fail(str(error), pytrace=False)
        if above:
            pytest.fail(f"{found.model} on {found.device}: {'; '.join(above)}", pytrace=False)
        return found

    return predicted_within
