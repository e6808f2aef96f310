"""A prediction as options ask for it: from a kept trace, which needs no torch, or from a new one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from neuralpower.ask import texts
from neuralpower.ask.spread import Given
from neuralpower.errors import check_share
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.settings import set_to
from neuralpower.prediction.case import predict, priced, served
from neuralpower.prediction.costs.footprint import footprint_of
from neuralpower.prediction.kept.kept import KeptNetwork
from neuralpower.prediction.prediction import Prediction, check_coverage
from neuralpower.prediction.request import Request, dtype_for, phase_in, request_of, run_of
from neuralpower.prediction.timeline import Seen
from neuralpower.prediction.weights import check_served_by
from neuralpower.trace.question import Question


def predicted(
    predictor: Predictor,
    model: Any,
    inputs: Any,
    options: Given,
    seen: Seen | None = None,
    later: list[Callable[[], None]] | None = None,
) -> Prediction:
    """The prediction that options ask for; `seen` as in `prediction.case.predict`.

    `later` receives work that makes other sizes quick to answer, for when this answer has been shown.
    """
    share, batch = options.get("min_coverage"), options.get("batch_size")
    predictor = set_to(predictor, options.get("power_limit"), options.get("clock"))
    check_share("min_coverage", share, "min_coverage=0.95")
    phase, engine = phase_in(options), options.get("engine")
    run = run_of(options.get("run"), phase.name, predictor.platform)
    check_served_by(engine, run)
    dtype, notes = dtype_for(model, options.get("dtype"), predictor, run, engine)
    sizes = {} if inputs is None else {"batch_size": int(batch or 1)}
    new = inputs is not None or options.get("dim") is not None or options.get("no_cache")
    kept = None if new else KeptNetwork.of(model, later)
    facts = None if kept is None else kept.facts(texts.shape(options.get("input_shape")))
    if facts is not None and batch is None and phase.batch is None and phase.lengths is None:
        sizes = {"batch_size": facts["batch"]}
    request = request_of(model, options, dtype=dtype, **sizes)
    request.check(predictor)
    question = request.question(predictor.platform, knows=predictor.knows, run=run)
    recorded = None if kept is None or facts is None else kept.recorded(request, question)
    if recorded is not None and facts is not None:
        found = priced(recorded, predictor, question, model=facts["name"], margin=request.margin, seen=seen)
    else:
        found = _followed(predictor, inputs, options, request, question, kept, seen)
    check_coverage(found, share, "min_coverage")
    footprint = footprint_of(found, options)
    doubtful = () if footprint is None else footprint.warnings
    found = replace(found, footprint=footprint, warned=(*found.warned, *doubtful))
    return replace(found, assumptions=(*notes, *found.assumptions)) if notes else found


def _followed(
    predictor: Predictor,
    inputs: Any,
    options: Given,
    request: Request,
    question: Question,
    kept: KeptNetwork | None,
    seen: Seen | None,
) -> Prediction:
    """The prediction of a network that is followed now, and kept where `kept` says where."""
    from neuralpower.api.inputs import explained, runs_of
    from neuralpower.networks.inputs.requests import Generating
    from neuralpower.trace.follow import record

    source = request.source()
    how: dict[str, Any] = {"model": str(source.name), "margin": request.margin, "seen": seen}

    def answered(inputs: Any) -> Prediction:
        given: dict[str, Any] = {
            "batch_size": options.get("batch_size"),
            "checked": options.get("dtype") is not None,
        }
        asked = (
            request.asked(source, question.run)
            if inputs is None
            else runs_of(source, inputs, request, question.run, **given)
        )
        if kept is None or isinstance(asked, Generating) or not kept.keeps(request, question):
            return predict(asked, predictor, question, **how)[0]
        served(asked, predictor, question)  # refuses what contradicts
        begun_s = time.process_time()
        recorded = record(asked, question)
        took_s = time.process_time() - begun_s
        kept.keep_facts(source, request.input_shape)
        kept.keep(recorded, request, question)
        if kept.later is not None:
            kept.later.append(partial(kept.keep_sizes, recorded, request, question, source, took_s))
        return priced(recorded, predictor, question, **how)

    with explained(inputs, answered):
        return answered(inputs)
