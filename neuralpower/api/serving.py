"""`neuralpower.traffic`: the requests, the deployment, and what users wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuralpower.api.apart import apart
from neuralpower.api.loaded import chosen
from neuralpower.ask.keywords import check_names
from neuralpower.devices.cluster import cluster_of
from neuralpower.devices.layout import Layout
from neuralpower.errors import InputError
from neuralpower.serving.traffic import Traffic, deployed, served_at, targets_of
from neuralpower.serving.workload import requested

DRAWN = "rate users trace input output requests spread burstiness seed scale".split()
DEPLOYED = (
    "engine dtype weights layout link_bytes_per_s options budget most overlaps host_s prefix_hit longest"
).split()
SERVED = "sla curve replicas".split()


@apart
def asked_traffic(model: str, device: str, predictor: Any, settings: Mapping[str, Any]) -> Traffic:
    """Serve what the settings name on the devices; raises InputError."""
    check_names("option of traffic", settings, dict.fromkeys((*DRAWN, *DEPLOYED, *SERVED)))
    given = {name: value for name, value in settings.items() if value is not None}
    targets = targets_of(given["sla"]) if "sla" in given else ()
    comes = bool(given.keys() & {"rate", "users", "trace"})
    if not comes and not targets:
        raise InputError("traffic: no requests; give rate, users, trace, or sla to find a rate")
    workload = requested(**{name: given[name] for name in DRAWN if name in given})
    cluster = cluster_of(device)
    how = {name: given[name] for name in DEPLOYED if name in given}
    layout = how.pop("layout", None) or Layout(tensor=cluster.devices)
    cluster.check(layout)
    if "most" in how:
        how["requests"] = how.pop("most")
    deployment = deployed(
        model,
        chosen(cluster.spec.slug, predictor).predictor,
        layout=layout,
        cluster=None if layout.alone else cluster,
        longest=how.pop("longest", None) or int((workload.prompt + workload.output).max()),
        **how,
    )
    return served_at(
        deployment,
        workload,
        rate=given.get("rate"),
        replicas=given.get("replicas", 1),
        targets=targets,
        curve=given.get("curve", ()),
        find=bool(targets) and not comes,
    )
