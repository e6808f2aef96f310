"""How results show themselves in Python: print, repr, notebooks, trees, plots."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
from torch import Tensor, nn

import neuralpower
from neuralpower.api.loaded import LoadedPredictor
from neuralpower.errors import InputError
from neuralpower.prediction.prediction import Prediction
from neuralpower.report.results.explored import comparison_table, fit_table, sweep_table
from neuralpower.report.tables import prediction_table
from tests.program import done

MARKUP = "<script>alert(1)</script>"


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.dense(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(scope="module")
def predictor() -> LoadedPredictor:
    return neuralpower.load("amd-epyc-2c")


@pytest.fixture(scope="module")
def prediction(predictor: LoadedPredictor) -> Prediction:
    return predictor.predict(Net(), (4, 8))


@pytest.fixture(scope="module")
def results(predictor: LoadedPredictor, prediction: Prediction) -> dict[str, Any]:
    return {
        "Prediction": prediction,
        "Tree": prediction.tree(),
        "Sweep": predictor.sweep(Net(), batch_size=(1, 2), input_shape=(8,)),
        "Fit": predictor.fit(Net(), "1GB", input_shape=(8,)),
        "Comparison": predictor.compare(Net(), Block(), inputs=(4, 8)),
        "NetworkProfile": neuralpower.profile(Net(), (4, 8), repeat=2, warmup=0),
        "LoadedPredictor": predictor,
    }


def test_print_gives_the_commands_tables(results: dict[str, Any]) -> None:
    fit = results["Fit"]
    assert str(results["Prediction"]) == prediction_table(results["Prediction"], "kind", 3, 15)
    assert str(results["Sweep"]) == sweep_table(results["Sweep"])
    assert str(results["Comparison"]) == comparison_table(results["Comparison"])
    assert str(fit) == fit_table(fit, fit.request, "AMD EPYC")
    assert str(fit).startswith("Net, batch 1, float32, forward")
    assert str(results["NetworkProfile"]) == results["NetworkProfile"].table(top=15)


def test_repr_is_one_short_line_that_begins_with_the_class(results: dict[str, Any]) -> None:
    for name, result in results.items():
        line = repr(result)
        assert line.startswith(f"{name}(") and line.endswith(")")
        assert "\n" not in line and len(line) < 250
    assert "latency" in repr(results["Prediction"]) and "batch 4" in repr(results["Prediction"])


class Tags(HTMLParser):
    """Names of all elements, and which are left open."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_notebooks_get_panels_without_scripts(results: dict[str, Any]) -> None:
    for result in results.values():
        shown, tags = result._repr_html_(), Tags()
        tags.feed(shown)
        assert not tags.open
        assert "script" not in tags.seen
        assert "prefers-color-scheme: dark" in shown


def test_a_panel_has_units_kinds_and_a_bar_for_each_share(prediction: Prediction) -> None:
    shown = prediction._repr_html_()
    shares = [float(width) for width in re.findall(r'class="bar" style="width: ([\d.]+)%', shown)]
    assert shares == [round(100 * row.share, 1) for row in prediction.by_kind()]
    assert re.search(r"<b>[\d.]+ (u|m)s</b>", shown)
    assert "<td>linear</td>" in shown and "FLOP" in shown


def test_warnings_come_first(prediction: Prediction) -> None:
    doubtful = dataclasses.replace(prediction, warned=("the <bounds> are too narrow",))
    assert str(doubtful.tree()).startswith("Warning: the <bounds> are too narrow\n")
    shown = doubtful._repr_html_()
    assert shown.index("Warning: the &lt;bounds&gt; are too narrow") < shown.index('class="figures"')


def test_names_of_others_are_no_markup(predictor: LoadedPredictor) -> None:
    named = type(MARKUP, (Net,), {})
    for shown in (predictor.predict(named(), (4, 8)), predictor.predict(named(), (4, 8)).tree()):
        assert "<script>" not in shown._repr_html_()


def test_results_are_compared_and_pickled(results: dict[str, Any], predictor: LoadedPredictor) -> None:
    for name, result in results.items():
        again = pickle.loads(pickle.dumps(result))
        assert repr(again) == repr(result)
        if name not in ("NetworkProfile", "LoadedPredictor"):  # these hold more than plain values
            assert again == result
    assert results["Prediction"] != predictor.predict(Net(), (8, 8))


def test_results_become_tables_of_pandas(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    table = results["Sweep"].to_pandas()
    assert table["batch_size"].tolist() == [1, 2]
    assert results["Prediction"].to_pandas()["flops"].sum() == results["Prediction"].flops
    monkeypatch.setitem(sys.modules, "pandas", None)
    for name in ("Sweep", "Prediction"):
        with pytest.raises(InputError, match="to_pandas needs pandas: pip install pandas"):
            results[name].to_pandas()


# ---- trees ----


def test_a_tree_has_shapes_parameters_work_and_time(prediction: Prediction) -> None:
    tree = prediction.tree()
    lines = {line.name: line for line in tree}
    assert [line.name for line in tree] == ["Net", "blocks", "[0-2]", "dense", "norm", "(own)", "head"]
    block, head = lines["[0-2]"], lines["head"]
    assert (block.type, block.times, block.output) == ("Block", 3, (4, 8))
    assert block.parameters == 3 * (8 * 8 + 8 + 8 + 8)  # weight, bias, and the norm's two
    assert (head.type, head.output, head.parameters) == ("Linear", (4, 2), 8 * 2 + 2)
    assert head.flops == 2 * 4 * 8 * 2
    assert head.memory_bytes == 4 * (8 * 2 + 2) + 4 * 4 * 2  # weights, outputs
    assert tree.root.flops == pytest.approx(prediction.flops)
    assert tree.root.parameters == prediction.parameters
    assert tree.root.runtime_s == pytest.approx(prediction.runtime_s.value)
    assert block.runtime_s == pytest.approx(sum(line.runtime_s for line in block.branches))


def test_a_tree_ends_at_its_depth(prediction: Prediction) -> None:
    assert [line.name for line in prediction.tree(1)] == ["Net", "blocks", "head"]
    text = str(prediction.tree())
    assert "│  └─ [0-2] (Block) x3" in text and "[4, 2]" in text
    assert text.startswith("Net, batch 4, float32, forward, on AMD EPYC\n")
    for depth in (0, 2.5, None):
        with pytest.raises(InputError, match="depth .*: must be a whole number, 1 or more"):
            prediction.tree(depth)


def test_the_command_draws_the_tree() -> None:
    asked = ("zoo:deep_mnist", "--predictor", "amd-epyc-2c", "--by", "tree", "--depth", 1)
    found = neuralpower.predict("zoo:deep_mnist", predictor="amd-epyc-2c")
    assert done("predict", *asked).strip() == str(found.tree(1))


def test_blocks_that_differ_stay_apart(predictor: LoadedPredictor) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 16))
    assert [line.name for line in predictor.predict(model, (4, 8)).tree()] == [
        "Sequential",
        "[0-1]",
        "2",
        "3",
    ]


def test_a_step_of_training_and_quantised_weights_have_a_tree(predictor: LoadedPredictor) -> None:
    step = predictor.predict(Net(), (4, 8), phase="training")
    assert step.tree().root.runtime_s == pytest.approx(step.runtime_s.value)
    wide = nn.Sequential(nn.Linear(1024, 1024, bias=False))
    full, int8 = (
        predictor.predict(wide, (1, 1024), weights=weights).tree().root.memory_bytes
        for weights in (None, "int8")
    )
    assert int8 < 0.3 * full


def test_what_waits_for_launches_is_a_line(predictor: LoadedPredictor) -> None:
    found = neuralpower.predict(Net(), (4, 8), device="h100")
    lines = {line.name: line for line in found.tree()}
    assert lines["(launch overhead)"].share > 0.3
    assert found.tree().root.runtime_s == pytest.approx(found.runtime_s.value)


# ---- plots ----


def test_a_plot_has_a_bar_for_each_row(prediction: Prediction) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    kinds = prediction.by_kind()
    axes = prediction.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.kind for row in kinds]
    bars: list[Any] = list(axes.patches)
    assert [bar.get_width() for bar in bars] == pytest.approx([row.runtime_s * 1e3 for row in kinds])
    _, own = pyplot.subplots()
    layers = prediction.plot(by="layer", top=2, ax=own)
    assert layers is own
    assert layers.get_yticklabels()[-1].get_text() == f"({len(prediction.rows) - 2} more)"
    pyplot.close("all")
    with pytest.raises(InputError, match="unknown view 'layers': did you mean layer"):
        prediction.plot(by="layers")


def test_a_plot_names_the_extra_that_is_missing(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"plot needs matplotlib: pip install matplotlib"):
        prediction.plot()


@pytest.mark.parametrize(
    ("tried", "meant"), [("latency", "runtime_s"), ("memory_bytes", "memory.value_bytes")]
)
def test_an_unknown_attribute_names_the_known_one(results: dict[str, Any], tried: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{tried}'; write {meant}"):
        getattr(results["Prediction"], tried)
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        _ = results["Prediction"].nothing
    assert copy.deepcopy(results["Prediction"]) == results["Prediction"]
