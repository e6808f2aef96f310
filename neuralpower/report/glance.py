"""A prediction at a glance: at most four lines, what `-v` adds to them, and what several devices share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neuralpower.files.terminal import styled, visible
from neuralpower.learn.estimates import TOLD
from neuralpower.networks.diffusion.families import VIDEO
from neuralpower.networks.phases import STEP, spelled
from neuralpower.prediction.costs.footprint import Footprint, Line
from neuralpower.prediction.costs.images import HOUR_S, Images
from neuralpower.prediction.generation import Generation, Step
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.prediction import COVERED, Prediction, percent
from neuralpower.prediction.rows import Interval
from neuralpower.prediction.several_devices import Parallel
from neuralpower.report.grid import MOST_LINES, head_lines, line_width
from neuralpower.report.number_format import between, binary, bounded, counted, many, plain, quantity, share
from neuralpower.trace.question import EAGER, ENGINE
from neuralpower.trace.recipe import TRAINING

ESTIMATED = ", estimated"  # of watts that nobody measured
MOSTLY = 0.995  # share of the time that counts as all of it


def glance(p: Prediction) -> list[str]:
    """What runs on what and how sure that is, time, energy and price, memory; warnings come first.

    Where a line is longer than `grid.at_most` allows, its clauses go where they fit.
    """
    what, where, sure = _question(p), f"on {_place(p)}", sureness(p)
    latency, waits = f"latency {_bounds(p)}{_rate(p)}", _each_token(p)
    joules, watts, paid = _joules(p), _watts(p), [*lines_of(_money(p)[-1:])]
    energy, width = [one for one in (joules, watts, *paid) if one], line_width()
    lines = [
        f"{what}, {where}: {sure}",
        "; ".join(filter(None, [latency, waits])),
        "; ".join(energy),
        _memory(p),
    ]
    lines = [line for line in lines if line]
    if width is not None and any(len(line) > width for line in lines):
        first = f"{what}, {where}"
        heads = [first, sure] if len(first) <= width else [what, f"{where}: {sure}"]
        short = [_watts(p, short=True), _memory(p, short=True), *paid]
        lines = _packed([*heads, latency, joules], [waits, *short], width)
        if len(lines) > MOST_LINES:  # bounds are 90 % ones everywhere, and of the time's and the joules'
            latency, waits = latency.replace(", 90 %)", ")"), waits.replace("first token", "first")
            short[0] = _watts(p, short=True, alone=True)
            lines = _packed([*heads, latency, joules], [waits, *short], width)
    bold = ("latency ", "energy ")
    shown = [styled(visible(line), "bold" if line.startswith(bold) else "") for line in lines]
    return head_lines(p.warned, shown)


def _packed(lines: list[str], clauses: Iterable[str], width: int) -> list[str]:
    """The lines, with each clause at the end of the last line, but the first, that is short enough."""
    lines = [line for line in lines if line]
    for clause in filter(None, clauses):
        room = [i for i, line in enumerate(lines) if i and len(line) + 2 + len(clause) <= width]
        if room:
            lines[room[-1]] += f"; {clause}"
        else:
            lines.append(clause)
    return lines


def footprint_lines(prediction: Prediction) -> Iterator[str]:
    """Energy, money and carbon, where options request them, without what stands at a glance."""
    found, told = prediction.footprint, prediction.generation is not None
    above = _money(prediction)[-1:]
    left = [line for line in found.lines if line not in above] if isinstance(found, Footprint) else []
    yield from (visible(text) for text in lines_of(left) if not (told and text.startswith("energy per ")))


def _money(prediction: Prediction) -> list[Line]:
    """The prices of a footprint."""
    found = prediction.footprint
    lines = found.lines if isinstance(found, Footprint) else ()
    return [line for line in lines if line.name.startswith("price ")]


def lines_of(lines: Iterable[Line]) -> Iterator[str]:
    """Each line of a footprint as text."""
    for line in lines:
        yield f"{line.name} {_amount(line.value, line.unit)}{f'; {line.about}' if line.about else ''}"


def _amount(value: Interval, unit: str) -> str:
    """A value with its bounds; money and kWh take no prefix of the unit."""
    if unit in ("J", "g"):
        return bounded(value, unit)
    return f"{plain(value.value)} {unit} ({plain(value.low)} to {plain(value.high)})"


def details(p: Prediction) -> Iterator[str]:
    """What `-v` adds: where the times come from, weights, parts of the memory, work, savings."""
    yield visible(f"times: {p.origin or f'trained on {p.predictor}'}")
    if p.weights is not None:
        yield visible(p.weights.line)
    yield from tokens(p)
    if p.memory is not None:
        yield memory_line(p.memory, "memory of a device" if p.parallel else "memory")
    related = 0.0 if p.trained_here is None else p.coverage - p.trained_here
    of, parameters = _of_a_rank(p), many(p.parameters, "parameters")
    yield f"{quantity(p.flops, 'FLOP')}{of}, {parameters}{of}"
    similar = "" if related < TOLD else f", {share(related)} on those of similar devices"
    borrowed = f", {share(p.borrowed)} is borrowed from similar layers" if p.borrowed >= TOLD else ""
    yield (
        f"{share(p.coverage)} of the time rests on measurements{similar}{borrowed}; "
        f"{share(p.extrapolated)} is outside the measured sizes"
    )
    if p.savings is not None:
        yield str(p.savings)


def sureness(p: Prediction) -> str:
    """The error to expect, and why: whose measurements say the time."""
    here, formulas = p.trained_here, 1 - p.coverage
    if p.coverage < TOLD:
        why = "nobody measured such layers"
    elif here is None or here > MOSTLY * p.coverage:
        why = "measured on this device" if p.coverage >= COVERED else "partly measured on this device"
    elif here >= TOLD:
        why = f"{percent(here)} measured on this device"
    else:
        why = "nobody measured this device"
    alone = f", {percent(formulas)} rests on formulas alone" if p.coverage < COVERED else ""
    return f"expect {max(p.expected_error, 0.01):.0%} error; {why}{alone}"


def _question(p: Prediction) -> str:
    """What runs on what, without what is usual."""
    about, sizes = p.generation, ""
    if isinstance(about, Generation):
        prompt = spelled(about.lengths) if about.lengths else about.prompt
        sizes = f" (prompt {prompt}, {about.new_tokens} new tokens)"
    elif isinstance(about, Step) and p.phase == STEP:
        sizes = f" ({counted(about.tokens, 'new token')} of {counted(p.batch_size, 'request')})"
    elif isinstance(about, Step):
        what = "context" if about.context else "prompt"
        sizes = f" ({what} {spelled(about.lengths) if about.lengths else about.context or about.tokens})"
    if isinstance(p.images, Images):
        sizes = f" ({', '.join(_picture(p.images))})"
    runs_as = p.weights and p.weights.runs_as
    weights = "" if p.weights is None else f", weights {p.weights.name}"
    weights += f" ({runs_as})" if runs_as else ""
    usual = EAGER if p.generation is None else ENGINE
    run = "" if p.run == usual else f", {p.run}"
    return f"{p.model}, {p.phase}{sizes}, batch {p.batch_size}, {p.dtype}{weights}{run}"


def _place(p: Prediction) -> str:
    layout = p.parallel and p.parallel.layout
    return p.device if layout is None else f"{layout.ranks} x {p.device}, {layout}"


def _memory(p: Prediction, short: bool = False) -> str:
    """The memory that it takes and that the device has; "" where it is not known."""
    if p.memory is None:
        return ""
    m, of = p.memory, " of a device" if p.parallel else ""
    value, low, high = (binary(size) for size in (m.value_bytes, m.low_bytes, m.high_bytes))
    room = "" if p.device_memory_bytes is None else binary(p.device_memory_bytes)
    if short:
        return f"memory {between(value, room, 'of')}" if room else f"memory{of} {value}"
    return f"memory{of} {value} ({between(low, high)})" + (f"; the device has {room}" if room else "")


def _picture(made: Images) -> Iterator[str]:
    """What a pipeline makes, in a few words."""
    if made.width:
        yield f"{made.width}x{made.height}"
    if made.task == VIDEO:
        yield f"{made.frames} frames"
    yield counted(made.steps, "step")
    if made.guidance:
        yield "guided"


def _bounds(p: Prediction) -> str:
    return f"{bounded(p.runtime_s, 's')[:-1]}, 90 %)"


def _rate(p: Prediction) -> str:
    """Samples or tokens per second, of all devices together."""
    about = p.generation
    if p.parallel is not None:
        many = p.parallel.tokens_per_s if isinstance(about, (Generation, Step)) else None
        rate = next(_rates(p.parallel, p.images)) if many is None else f"{plain(many.value)} tokens/s"
        return f", {rate}"
    if isinstance(about, (Generation, Step)):
        return f", {plain(about.tokens_per_s.value)} tokens/s"
    if isinstance(p.images, Images):
        each, hour = p.images.runtime_per_image_s.value, p.images.images_per_hour.value
        apart = "" if p.images.made == 1 else f": {quantity(each, 's')} per {p.images.noun}"
        return f"{apart}, {plain(hour)} {p.images.noun}s/h"
    samples = p.batch_size if p.training is None else p.training.samples
    return "" if p.runtime_s.value <= 0 else f", {plain(samples / p.runtime_s.value)} samples/s"


def _each_token(p: Prediction) -> str:
    """When the first and each further token of a generation come."""
    about = p.generation
    if not isinstance(about, Generation) or about.time_per_output_token_s is None:
        return ""
    first, each = about.time_to_first_token_s.value, about.time_per_output_token_s.value
    return f"first token {quantity(first, 's')}, then {quantity(each, 's')} each"


def _joules(p: Prediction) -> str:
    """Energy of all devices, and for each token or image of several; why it is unknown."""
    whole = p.energy_j if p.parallel is None else p.parallel.energy_j
    if p.energy_j is None or p.power_w is None or whole is None:
        powered = any(row.power_w is not None for row in p.rows)
        return f"energy unknown: {p.power_reason}" if powered else ""
    if p.parallel is not None:
        return f"energy {bounded(whole, 'J')} of all devices"
    about, each, noun = p.generation, None, "token"
    if isinstance(about, (Generation, Step)):
        each = about.energy_per_token_j
    elif isinstance(p.images, Images):
        each, noun = p.images.energy_per_image_j, p.images.noun
    several = each is not None and each.value < whole.value * 0.999
    return f"energy {bounded(whole, 'J')}" + (
        f", {quantity(each.value, 'J')} per {noun}" if several and each else ""
    )


def _watts(p: Prediction, short: bool = False, alone: bool = False) -> str:
    """Power of a device, and how it is known; `alone` without bounds."""
    if p.energy_j is None or p.power_w is None:
        return ""
    watts = quantity(p.power_w.value, "W") if alone else bounded(p.power_w, "W")
    watts, how = f"{watts}{' each' if p.parallel else ''}", _whose_watts(p)
    return f"power about {watts}" if short and how == ESTIMATED else f"power {watts}{how}"


def _whose_watts(p: Prediction) -> str:
    """Whether watts were measured on this device or are scaled from similar devices, and which share."""
    trained = p.power_share_trained or 0.0
    if not trained:
        return ESTIMATED
    where = "scaled from similar devices" if p.trained_here == 0 else "measured here"
    return f", {where}" if trained > MOSTLY else f"; {share(trained)} {where}"


def _of_a_rank(p: Prediction) -> str:
    """Whose numbers the rows, FLOP and parameters are, where ranks share the network."""
    shared = p.parallel is not None and (p.parallel.layout.tensor > 1 or p.parallel.layout.expert > 1)
    return " of a rank" if shared else ""


def tokens(prediction: Prediction) -> Iterator[str]:
    """Lines on a prefill, a decoding step or a generation; none for any other pass."""
    about = prediction.generation
    if isinstance(about, Generation):
        first = bounded(about.time_to_first_token_s, "s")
        prompt = f"prompts {spelled(about.lengths)}" if about.lengths else f"prompt {about.prompt}"
        yield f"{prompt}, {about.new_tokens} new tokens: first after {first}"
        if about.time_per_output_token_s is not None and about.first_step_s and about.last_step_s:
            ends = (quantity(step.value, "s") for step in (about.first_step_s, about.last_step_s))
            each = bounded(about.time_per_output_token_s, "s")
            yield f"then {each} per token, the first {', the last '.join(ends)}"
        if about.prefill_energy_j is not None and about.decode_energy_j is not None:
            apart = (bounded(joules, "J") for joules in (about.prefill_energy_j, about.decode_energy_j))
            yield "energy of the prompt {}, of the steps {}".format(*apart)
    elif isinstance(about, Step) and about.lengths:
        what = "contexts" if about.context else "prompts"
        yield f"{what} {spelled(about.lengths)} of {counted(len(about.lengths), 'request')}"
    elif isinstance(about, Step) and prediction.phase == STEP:
        yield f"{counted(about.tokens, 'new token')} of {counted(prediction.batch_size, 'request')}"
    elif isinstance(about, Step):
        yield f"{counted(about.tokens, 'new token')} a sample, {about.context} in the cache"
    if isinstance(about, (Generation, Step)):
        energy = about.energy_per_token_j
        joules = "" if energy is None else f", {bounded(energy, 'J')} per token"
        held = f", cache {binary(about.cache_bytes)}" if about.cache_bytes else ""
        yield f"{plain(about.tokens_per_s.value)} tokens/s{joules}{held}"


def memory_line(memory: Memory, name: str = "memory") -> str:
    """The peak with its bounds and its parts, the largest part first."""
    m = memory
    value, low, high = (binary(size) for size in (m.value_bytes, m.low_bytes, m.high_bytes))
    made_of = ", ".join(f"{name} {binary(size)}" for name, size in m.shown_parts.items())
    assumed = ", assumed, not an upper bound" if m.assumed else ""
    return f"{name} {value} ({low} to {high}{assumed}): {made_of}"


def parallel_lines(prediction: Prediction) -> Iterator[str]:
    """The layout and the whole batch, exchanges and waits, then all devices together; none for one device."""
    p = prediction.parallel
    if p is None:
        return
    yield visible(f"{placed(p)}: {_batch(p, prediction)}")
    delays = quantity(p.exposed_share * prediction.runtime_s.value, "s")
    yield f"communication {quantity(p.communication_s, 's')}, of which {delays} delay the step{_waits(p)}"
    yield f"all devices: {', '.join(_rates(p, prediction.images))}"
    if len(p.stages) > 1:
        yield _stages(p)


def placed(p: Parallel) -> str:
    """The layout, and the devices that it takes: `tensor 8 on 8 of 16 devices`."""
    if p.cluster is None or p.cluster.devices == p.ranks:
        return f"{p.layout} on {counted(p.ranks, 'device')}"
    return f"{p.layout} on {p.ranks} of {p.cluster.devices} devices"


def _batch(p: Parallel, prediction: Prediction) -> str:
    factors = [str(prediction.batch_size)]
    if p.micro_batches > 1:
        what = "micro-batches" if prediction.phase == TRAINING else "batches in flight"
        factors.append(f"{p.micro_batches} {what}")
    if p.layout.data > 1:
        factors.append(f"{p.layout.data} replicas")
    made = f" ({' x '.join(factors)})" if len(factors) > 1 else ""
    return f"whole batch {p.samples}{made}"


def _waits(p: Parallel) -> str:
    return f"; pipeline bubble {share(p.bubble_share)}" if p.layout.pipeline > 1 else ""


def _rates(p: Parallel, images: object = None) -> Iterator[str]:
    if isinstance(images, Images):
        yield f"{plain(HOUR_S * p.samples_per_s.value * images.images)} {images.noun}s/h"
    elif p.tokens_per_s is not None and p.tokens != p.samples:
        yield f"{plain(p.tokens_per_s.value)} tokens/s"
    if not isinstance(images, Images):
        yield f"{plain(p.samples_per_s.value)} samples/s"
    if p.energy_j is not None:
        yield f"energy {bounded(p.energy_j, 'J')}"
    if p.utilisation is not None:
        yield f"{p.utilisation:.1%} of the dense peak (MFU)"


def _stages(p: Parallel) -> str:
    """Work and memory of a device of each stage."""
    blocks = ", ".join(str(len(stage.blocks)) for stage in p.stages)
    times = ", ".join(quantity(stage.busy_s, "s") for stage in p.stages)
    text = f"stages of {blocks} blocks: {times}"
    known = [stage.memory for stage in p.stages if stage.memory is not None]
    if len(known) < len(p.stages):
        return text
    return f"{text}; memory of a device {', '.join(binary(one.value_bytes) for one in known)}"
