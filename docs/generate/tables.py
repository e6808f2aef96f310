"""Tables of devices, predictors, models and layer kinds, made from the package's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from docs.generate.markdown import code, page, table
from neuralpower.devices.spec import DeviceSpec, known_spec, known_specs, read_spec
from neuralpower.layers import KINDS
from neuralpower.layers.rows import field_names
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.any_device import POOLED
from neuralpower.networks.names.catalogue import TASKS, catalogue
from neuralpower.platforms import platform_of

ROOT = Path(__file__).parents[2]
# Columns of the table: types of a product's operands, by their names on spec sheets
SHOWN = {
    "float32": "float32",
    "bfloat16": "bf16, fp16",
    "float8_e4m3fn": "fp8",
    "nvfp4": "nvfp4",
    "int8": "int8 weights",
    "int4": "int4 weights",
}
SAME = {"float16": "bfloat16"}  # kernels take as long in both
SORTS = ("NVIDIA GPUs", "GPUs of AMD and Intel", "TPUs and Apple chips", "processors")
TRAINED, CARRIED, ROOFLINE, LACKING = "trained", "carried", "roofline", "-"
WEIGHTS = ("int8", "int4")  # unpacked, and multiplied in 16 bits


@dataclass(frozen=True)
class Known:
    """The types of products that the included predictors were trained on."""

    predictors: Mapping[str, Predictor]

    @cached_property
    def pooled(self) -> frozenset[str]:
        """Types of the pooled predictor, which it carries to other NVIDIA GPUs."""
        return frozenset(self.types(self.predictors[POOLED])) if POOLED in self.predictors else frozenset()

    @cached_property
    def own(self) -> dict[str, frozenset[str]]:
        """By device: the types that its own predictors were trained in."""
        found: dict[str, frozenset[str]] = {}
        for name, predictor in self.predictors.items():
            if name != POOLED and "," not in predictor.device:
                known = found.get(predictor.device, frozenset())
                found[predictor.device] = known | frozenset(self.types(predictor))
        return found

    @staticmethod
    def types(predictor: Predictor) -> Iterator[str]:
        """Types of the products that a predictor was trained on, and of their weights."""
        for kind, dtype, _, group in predictor.regressors:
            if kind == "linear":
                yield dtype
                yield from (weights for weights in WEIGHTS if f"[{weights}]" in group)

    def of(self, spec: DeviceSpec, dtype: str) -> str:
        """The source of a product's time on a device."""
        peaks = {SAME.get(one, one) for one in spec.peak_flops}
        peaks |= {"nvfp4"} if "float4_e2m1fn" in peaks else set()
        if dtype in self.own.get(spec.slug, ()):
            return TRAINED
        run_in = "bfloat16" if dtype in WEIGHTS else dtype
        if run_in not in peaks:
            return LACKING
        relatives = platform_of(spec.hardware()).family != "cpu"
        return CARRIED if relatives and run_in in self.pooled else ROOFLINE


def known() -> Known:
    """The types of all predictors in `models/`."""
    return Known({path.stem: load(path) for path in sorted((ROOT / "models").glob("*.json"))})


def specs() -> list[DeviceSpec]:
    """All sheets, by name."""
    return [read_spec(path) for _, path in sorted(known_specs().items())]


def short_devices() -> str:
    """The README's table: a row per set of similar trained devices, and one per class of other devices."""
    what, sheets = known(), specs()
    trained = [spec for spec in sheets if what.own.get(spec.slug)]
    alike: dict[tuple[str, ...], list[str]] = {}
    for spec in trained:
        name = spec.name.removeprefix("NVIDIA ").removeprefix("Tesla ").partition(" Blackwell")[0]
        alike.setdefault(tuple(what.of(spec, dtype) for dtype in SHOWN), []).append(name)
    most_first = sorted(alike.items(), key=lambda one: -one[0].count(TRAINED))
    rows = [(", ".join(names), *cells) for cells, names in most_first]
    for device, dtypes in what.own.items():
        if known_spec(device) is None:
            about = f"{device}, 2 virtual cores"
            rows.append((about, *(TRAINED if dtype in dtypes else LACKING for dtype in SHOWN)))
    rest = [spec for spec in sheets if spec not in trained]
    for words in SORTS:
        those = [spec for spec in rest if sort_of(spec) == words]
        rows.append((f"{len(those)} more {words}", *(most(what, those, dtype) for dtype in SHOWN)))
    return table(("device", *SHOWN.values()), rows)


def sort_of(spec: DeviceSpec) -> str:
    """The class of a device in the README's table."""
    if spec.device_class == "gpu":
        return SORTS[0] if spec.vendor == "NVIDIA" else SORTS[1]
    return SORTS[3] if spec.device_class == "cpu" else SORTS[2]


def most(what: Known, those: Sequence[DeviceSpec], dtype: str) -> str:
    """The most frequent source of a type among the devices that have it."""
    found = [one for one in (what.of(spec, dtype) for spec in those) if one != LACKING]
    return max(found, key=found.count) if found else LACKING


def number(value: float | None, unit: float) -> str:
    """A value in a unit; an empty text for an unknown value."""
    return "" if value is None else f"{value / unit:,.4g}" if value < 1e4 * unit else f"{value / unit:,.0f}"


def devices_page() -> str:
    """All spec sheets, with the source of products' times on each."""
    what = known()
    rows = (
        (
            code(spec.slug),
            number(spec.get("memory_bytes"), 2**30),
            number(spec.get("memory_bytes_per_s"), 1e9),
            *(number(spec.peak_flops.get(one), 1e12) for one in PEAKS),
            number(spec.get("limit_w"), 1),
            *(what.of(spec, dtype) for dtype in SHOWN),
        )
        for spec in specs()
    )
    header = (
        "device",
        "GiB",
        "GB/s",
        *(f"{words}, TFLOP/s" for words in PEAKS.values()),
        "W",
        *SHOWN.values(),
    )
    return page("# Devices", DEVICES, table(header, rows))


PEAKS = {"float32": "float32", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}
DEVICES = """`--device NAME` takes any of these, in any usual spelling (`h100`, `RTX4090`, `"m3 max"`).

The last columns show where the times of matrix products in that type come from.

- *trained*: from measurements of this device.
- *carried*: from measurements of NVIDIA GPUs, scaled by bandwidth and peaks. Other makers have wider bounds.
- *roofline*: from the spec sheet alone.
- A dash: the device lacks the type.

`neuralpower devices --spec NAME` prints each value with its source.
[Any device](../devices.md) has the errors of each source."""


def predictors_page() -> str:
    """All included predictors, with their cards."""
    rows = (
        (
            f"[`{name}`](../predictors/{name}.md)",
            predictor.device,
            ", ".join(predictor.trained_dtypes),
            ", ".join(predictor.phases),
            len({kind for kind, *_ in predictor.regressors}),
        )
        for name, predictor in known().predictors.items()
    )
    title = (
        "# Included predictors\n\n`--predictor NAME` takes any of these. [Which one?](../which-predictor.md)"
    )
    return page(title, table(("predictor", "trained on", "dtypes", "phases", "layer kinds"), rows))


def models_page() -> str:
    """The models of the catalogue, by task."""
    blocks = [
        "# Models by name",
        "`neuralpower predict NAME` takes any of these names. [Names](../names.md) explains the spelling.",
    ]
    for task in TASKS:
        found = [entry for entry in catalogue().values() if entry.task == task]
        rows = (
            (code(one.name), f"{one.parameters / 1e9:.3g} G", one.dtype, one.quantisation or "")
            for one in sorted(found, key=lambda one: one.name)
        )
        blocks += [f"## {task}", table(("model", "parameters", "dtype", "quantisation"), rows)]
    return page(*blocks)


def kinds_page() -> str:
    """Every layer kind: its columns, and the operators that it describes."""
    rows = (
        (code(name), " ".join((kind.__doc__ or "").split("\n\n")[0].split()), ", ".join(field_names(kind)))
        for name, kind in KINDS.items()
    )
    title = "# Layer kinds\n\nThe columns of a dataset's tables. [Datasets](../datasets.md) explains them."
    return page(title, table(("kind", "what it is", "columns"), rows))
