"""`neuralpower compare`: two networks, or two devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.choices import PHASES
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.formats import Answer, Rows, check_out, form_of, give
from neuralpower.cli.known_names import checked_side, completed_models, split_layout
from neuralpower.cli.panels import INPUT
from neuralpower.cli.parallel_options import Parallel, check_used
from neuralpower.devices.cluster import is_cluster
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.devices.cluster import Cluster
    from neuralpower.devices.layout import Layout
    from neuralpower.learn.predictor import Predictor
    from neuralpower.prediction.explore.compare import Side

app = Typer()


class Compare(OptionGroup):
    """Options: the two sides, and their inputs."""

    panel = INPUT

    a: Annotated[
        str,
        Argument(
            help="MODEL, MODEL@PREDICTOR, or with a layout: MODEL@8xh100-sxm:tp4pp2.",
            callback=checked_side,
            autocompletion=completed_models,
        ),
    ]
    b: Annotated[
        str,
        Argument(
            help="The other side; @PREDICTOR alone is the same model on another device.",
            callback=checked_side,
            autocompletion=completed_models,
        ),
    ]
    phase: Annotated[str, shared_options.phase_choice(PHASES, "Phase to predict")] = "forward"
    sizes: shared_options.Sizes
    device: shared_options.Device = None
    predictor: shared_options.Predictor = None
    run: shared_options.Run = None
    tokens: shared_options.Tokens
    parallel: Parallel
    plot: shared_options.Plot = None
    output: shared_options.Output


@app.command(
    epilog=examples(
        "neuralpower compare transformers:bert transformers:distilbert --seq-len 128",
        "neuralpower compare llama-3.1-8b@h100 @l40s --phase decode --context 4096",
    )
)
@with_options
def compare(asked: Compare) -> None:
    """Predict both sides and compare their times."""
    form = form_of(asked.output.form, asked.output.out, asked.output.as_json)
    stage("importing torch and transformers")
    from neuralpower.prediction.explore.compare import compare as compared
    from neuralpower.report.explored import comparison_table
    from neuralpower.report.grid import warning_lines
    from neuralpower.report.pictures import comparison_page, draw

    parsing.check_plot(asked.plot)
    check_out(asked.output.out, form)
    sides = _sides(asked)
    found = compared(*sides)
    if asked.plot is not None:
        draw(comparison_page(found, sides), asked.plot)

    def rows(cell: Callable[[float], Any] = float) -> Rows:
        times = ((found.a, found.a_s), (found.b, found.b_s))
        body = [[name, *map(cell, (time.value, time.low, time.high))] for name, time in times]
        return [["name", "runtime_s", "low_s", "high_s"], *body]

    answer = Answer(
        title=f"{found.a} against {found.b}",
        table=lambda: comparison_table(found, marked=True),
        json=found.to_json,
        rows=rows,
        lead=lambda: [*warning_lines(found.warnings), *comparison_table(found).splitlines()[-1:]],
        page=lambda: comparison_page(found, sides),
        warnings=found.warnings,
    )
    give(answer, form, asked.output.out)


def _sides(asked: Compare) -> list[Side]:
    """Both models, each predicted on its device; raises InputError."""
    from neuralpower.prediction.case import Case, predict_case, run_of
    from neuralpower.prediction.explore.compare import Side
    from neuralpower.trace.recipe import RECIPE, TRAINING

    shape = asked.sizes.shape
    phase = asked.tokens.phase(asked.phase)
    asked.tokens.check_batch(asked.sizes.batch_size)
    way = "forward" if asked.phase == phase.name else asked.phase
    recipe = asked.parallel.recipe(RECIPE, asked.phase)
    known: dict[str, Predictor] = {}
    sides = []
    for number, text in enumerate((asked.a, asked.b)):
        stage(f"predicting {text}", number, 2)
        parsing.check_named([text], "model")
        model, at, place = text.partition("@")
        if at and not place:
            raise InputError(
                f"{text!r} names no predictor behind @; write MODEL@PREDICTOR or @PREDICTOR, or leave @ out"
            )
        model = model or asked.a.partition("@")[0]
        name, layout, cluster = _placed(asked, model, place)
        known[name] = known.get(name) or _answers(asked, name if at else "", cluster)
        run = run_of(known[name], asked.run, phase, way)
        dtype = parsing.dtype(asked.sizes.dtype or parsing.usual_dtype(model, known[name], run))
        batch = parsing.batch_size(model, asked.sizes.batch_size, shape)
        how: dict[str, Any] = {"run": asked.run, "weights": asked.sizes.weights, "layout": layout}
        how |= {"cluster": cluster, "require_plan": asked.parallel.require_plan}
        case = Case(model, batch, asked.sizes.seq_len, shape, dtype, phase, **how)
        known[name].check(dtype, "forward" if way == TRAINING else way)
        prediction, _ = predict_case(case, known[name], phase=way, recipe=recipe)
        label = case.label + (f" {way}" if way != "forward" else "")
        if "@" in asked.a + asked.b:
            label += f" on {known[name].name}"
        sides.append(Side(label, prediction, known[name]))
    return sides


def _placed(asked: Compare, model: str, place: str) -> tuple[str, Layout, Cluster | None]:
    """(predictor or device, layout, devices) of a side: its own, else those of the options."""
    from neuralpower.devices.cluster import cluster_of
    from neuralpower.devices.layout import layout_of

    name, own = split_layout(place)
    layout = layout_of(own) if own else asked.parallel.layout
    nodes = asked.parallel.nodes
    cluster = cluster_of(name, nodes or 1) if is_cluster(name) else None if name else asked.parallel.cluster
    if cluster is None:
        return name or asked.predictor or "", layout, None
    if not own:
        check_used(asked.parallel.devices or name, cluster, [layout], model)
    cluster.check(layout)
    return name or asked.parallel.devices or "", layout, cluster


def _answers(asked: Compare, name: str, cluster: Cluster | None) -> Predictor:
    """The predictor of a side; raises InputError."""
    if cluster is not None:
        return parsing.predictor(asked.predictor, cluster.spec.slug)
    return parsing.predictor(name or asked.predictor, None if name else asked.device)
