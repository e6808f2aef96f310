"""`neuralpower.traffic` and `neuralpower.plan`: the requests, the deployment, and what users wait for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralpower.api.loaded import chosen
from neuralpower.api.profiled import apart
from neuralpower.ask import texts
from neuralpower.ask.options import Deployed, Drawn, options_of
from neuralpower.ask.spread import Given, layouts_in
from neuralpower.devices.cluster import Cluster, Layout, cluster_of
from neuralpower.devices.spec import find_spec
from neuralpower.dtypes import full_name
from neuralpower.errors import InputError
from neuralpower.files.paths import is_file
from neuralpower.layers.base import torch_dtype
from neuralpower.learn.settings import set_to
from neuralpower.networks.sources import resolve
from neuralpower.prediction.costs.footprint import Terms, terms_in
from neuralpower.prediction.costs.prices import NoPrice, by_name, price_of
from neuralpower.prediction.weights import scheme_asked
from neuralpower.serving.deployment import Setup
from neuralpower.serving.plan import Plan, Wanted, plan, with_each
from neuralpower.serving.results import read_result, targets_of
from neuralpower.serving.traffic import AUTO, Traffic, served_at, with_footprint
from neuralpower.serving.workload import Requested, Workload

POOL = "engine_version block_size cache_dtype gpu_memory_utilization mem_fraction_static "
POOL_OPTIONS = (POOL + "kv_cache_memory_bytes enforce_eager").split()
PLAIN = "none"  # of the weights to try: the checkpoint's own
LINK = re.compile(r"(\d+(?:\.\d+)?)\s*(GB/s|GiB/s|MB/s)")
UNITS = {"GB/s": 1e9, "GiB/s": 2.0**30, "MB/s": 1e6}
ACCEPTANCE = 0.7  # usual of three tokens that a trained head drafts (Li et al., EAGLE, 2024)


@apart
def asked_traffic(model: str, device: str, predictor: Any, options: Given) -> Traffic:
    """Serve what the options name on the devices; raises InputError."""
    given = _given(options)
    targets = targets_of(given["sla"]) if "sla" in given else ()
    result = read_result(Path(given["compare"])) if "compare" in given else None
    comes = given.keys() & {"rate", "users", "trace"}
    listed = None if result is None or comes else result.workload
    if not comes and not targets and listed is None:
        raise InputError(
            "traffic: no requests; give --rate 4, --users 32, --trace FILE, or --sla to find a rate"
        )
    drawn = {name: given[name] for name in (*options_of(Drawn), "rate", "users") if name in given}
    workload = listed or Requested(**drawn).workload()
    cluster = cluster_of(device)
    layout = _layout(options, cluster)
    for name, least in (("replicas", 1), ("prefill_replicas", 0)):
        if given.get(name, least) < least:
            raise InputError(f"--{name.replace('_', '-')} {given[name]}: {least} or more")
    terms = terms_in(options)
    trained = chosen(cluster.spec.slug, predictor).predictor
    price = None
    if terms.price is not None:
        price = price_of(terms.price, terms.currency, trained.device).per_hour
    setup = Setup(
        model,
        set_to(trained, given.get("power_limit"), given.get("clock")),
        layout=layout,
        cluster=None if layout.alone else cluster,
        longest=_longest(model, workload, given.get("draft_tokens", 0)),
        prefills=given.get("prefill_replicas", 0),
        price=price,
        keeps=predictor is None,
        **_deployed(given),
    )
    deployment = setup.deployed()
    served = served_at(
        deployment,
        workload,
        rate=given.get("rate"),
        replicas=given.get("replicas", 1),
        targets=targets,
        curve=_curve(given.get("curve")),
        find=bool(targets) and not comes and listed is None,
    )
    deployment.keep()
    served = with_footprint(served, terms, workload)
    if result is None:
        return served
    return replace(served, tool=result.tool, compared=result.against(served.value))


def _given(options: Given) -> dict[str, Any]:
    """The options that have a value, with a rate in requests per second."""
    given = {name: value for name, value in options.items() if value is not None}
    return given | {"rate": texts.rate(given["rate"])} if "rate" in given else given


def _longest(model: str, workload: Workload, more: int) -> int:
    """Tokens of the longest request; raises InputError where the model has fewer positions."""
    tokens = workload.prompt + workload.output + more
    config = getattr(resolve(model).build("meta", torch_dtype("float32")), "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(limit, int) and (too_long := int((tokens > limit).sum())):
        which = int(tokens.argmax())
        raise InputError(
            f"{too_long} of {workload.count} requests are longer than the {limit} positions of {model}; the "
            f"longest, request {which + 1}, takes {tokens[which]}: give shorter ones"
        )
    return int(tokens.max())


@apart
def asked_plan(model: str, options: Given) -> Plan:
    """Rank what serves a rate; raises InputError."""
    given = _given(options)
    for name, example in (("sla", "ttft=500ms,tpot=30ms@p95"), ("devices", "h100-sxm,l40s")):
        if name not in given:
            raise InputError(f"plan: no --{name}; give --{name} {example}")
    rate, trace = given.get("rate"), given.get("trace")
    if (rate is None) == (trace is None):
        raise InputError("plan: which requests come; give --rate 50, or --trace FILE with a day of them")
    names = given["devices"]
    several = texts.names(names, "device") if isinstance(names, str) else names
    specs = [find_spec(name) for name in several or ()]
    drawn = {name: given[name] for name in options_of(Drawn) if name in given}
    if trace is None:
        drawn = {**{"requests": 400}, **drawn, "rate": 1.0}
    workload = Requested(**drawn).workload()
    dtype, terms = given.get("dtype"), terms_in(given)
    prices = _prices(given.get("price", {}), terms.currency, [spec.slug for spec in specs])
    how = {**_deployed(given), "dtype": dtype and full_name(str(dtype))}
    del how["weights"]  # those are tried
    tensors = texts.counts(given.get("tensor_parallel", "1,2,4,8"), "tensor ranks")
    stages = texts.counts(given.get("pipeline_parallel", "1"), "pipeline stages")
    wanted = Wanted(
        model,
        workload,
        rate,
        targets_of(given["sla"]),
        specs,
        prices=prices,
        budget=_budget(given.get("budget"), terms.currency),
        layouts=[Layout(tensor=ranks, pipeline=count) for count in stages for ranks in tensors],
        weights=_weights(given.get("weights")),
        apart=given.get("apart", False),
        by=given.get("by", "devices"),
        executor=given.get("executor", "local"),
        keep=None if "keep" not in given else Path(given["keep"]),
        how=how,
    )
    found = plan(wanted)
    return found if terms == Terms() else with_each(found, terms, prices)


def _layout(options: Given, cluster: Cluster) -> Layout:
    """The layout of a replica over all of its devices; raises InputError."""
    layout = options.get("layout")
    if layout is None:
        degrees = dict(options)
        if degrees.get("tensor_parallel") is None:
            others = (degrees.get("pipeline_parallel") or 1) * (degrees.get("data_parallel") or 1)
            degrees["tensor_parallel"] = max(cluster.devices // others, 1)
        (layout,) = layouts_in({name: value for name, value in degrees.items() if value is not None})
    if layout.ranks != cluster.devices:
        raise InputError(
            f"--device {cluster}: {cluster.devices} devices, and the layout takes {layout.ranks}; "
            f"choose --tensor-parallel {cluster.devices}"
        )
    return layout


def _deployed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Setup`; raises InputError."""
    engine, draft = given.get("engine", "vllm"), given.get("draft_tokens", 0)
    if "acceptance" in given and not draft:
        raise InputError(f"--acceptance {given['acceptance']:g}: no tokens are drafted; add --draft-tokens 3")
    dtype = given.get("dtype")
    known = {name: given[name] for name in options_of(Deployed) if name in given}
    return {
        "engine": engine,
        "dtype": dtype and full_name(str(dtype).removeprefix("torch.")),
        "weights": known.get("weights"),
        "link_bytes_per_s": _link(known.get("link")),
        "options": {name: known[name] for name in POOL_OPTIONS if known.get(name)},
        "budget": known.get("max_num_batched_tokens"),
        "requests": known.get("max_num_seqs"),
        "prefix_hit": known.get("prefix_hit"),
        "draft": draft,
        "acceptance": known.get("acceptance", ACCEPTANCE if draft else 0.0),
        "drafts": known.get("draft"),
        "overlaps": not known["synchronous"] if "synchronous" in known else None,
    }


def _link(given: Any) -> float | None:
    """Bytes per second of a link; raises InputError."""
    if given is None or isinstance(given, (int, float)):
        return given
    found = LINK.fullmatch(str(given).strip())
    if found is None or not float(found[1]):
        raise InputError(f"--link {given}: a speed with its unit, above 0; write 14GB/s")
    return float(found[1]) * UNITS[found[2]]


def _prices(given: Any, currency: str | None, devices: Sequence[str]) -> dict[str, float]:
    """Prices of those devices that have one, by slug; raises InputError."""
    if isinstance(given, str) and "=" in given and not is_file(given):
        given = by_name(given)
    if isinstance(given, Mapping):  # each is checked, also those of other devices
        return {
            (slug := find_spec(name).slug): price_of({name: price}, currency, slug).per_hour
            for name, price in given.items()
        }
    found = {}
    for slug in devices:
        with contextlib.suppress(NoPrice):
            found[slug] = price_of(given, currency, slug).per_hour
    return found


def _budget(given: Any, currency: str | None) -> float | None:
    """Money for an hour; raises InputError."""
    if given is None:
        return None
    try:
        return price_of(given, currency, "").per_hour
    except InputError:
        raise InputError(f"budget {given}: money for an hour, above 0; write 50/h") from None


def _weights(given: Any) -> list[str | None]:
    """Quantisations to try, None for the checkpoint's; raises InputError."""
    several = texts.names(given, "weights") if isinstance(given, str) else given
    named = [None if name in (None, PLAIN) else str(name) for name in several or [None]]
    for name in named:
        scheme_asked(name)
    return named


def _curve(given: Any) -> Any:
    """Rates to show; raises InputError."""
    if given is None or given == AUTO:
        return given or ()
    rates = []
    for part in (texts.names(given, "rate") or ()) if isinstance(given, str) else given:
        try:
            rates.append(float(part))
        except (TypeError, ValueError):
            rates.append(0.0)
        if not 0 < rates[-1] < float("inf"):
            raise InputError(f"--curve {part}: requests per second, above 0 and finite; write 1,2,4, or auto")
    return rates
