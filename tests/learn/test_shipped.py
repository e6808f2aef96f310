"""The predictors of the package: each loads, names its origin, and predicts its training data."""

import dataclasses
from pathlib import Path

import pytest

from neuralpower.data.dataset import shard_folders
from neuralpower.layers import KINDS
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.keys import ANY
from neuralpower.learn.regressor import PLAIN_DEGREE
from neuralpower.measure.collect.plan import draw
from tests.tracked import tracked

MODELS = tracked("models/*.json")
DATASETS = tracked("datasets/*/README.md")


def test_there_is_one_for_each_cpu_of_this_repository_s_datasets() -> None:
    names = ["amd-epyc-2c", "amd-epyc-2c-zen5", "nvidia-h200-sxm-141gb"]
    assert [file.parent.name for file in DATASETS] == names
    assert all(trained_on(name) for name in names)


def trained_on(name: str) -> list[Path]:
    """Shipped predictors of a dataset's device."""
    return [file for file in MODELS if file.stem in (name, f"{name}-torch")]


@pytest.mark.parametrize("card", DATASETS, ids=lambda card: card.parent.name)
def test_a_dataset_s_card_tells_of_each_shard_and_its_predictor_of_it(card: Path) -> None:
    text, folder = card.read_text(), card.parent
    assert all(f"| `{shard.name}` |" in text for shard in shard_folders(folder))
    assert any(load(file).dataset["name"] == folder.name for file in trained_on(folder.name))


@pytest.mark.parametrize("file", MODELS, ids=[file.stem for file in MODELS])
def test_a_shipped_predictor_has_a_card_and_predicts(file: Path) -> None:
    predictor = load(file)
    card = file.with_suffix(".md").read_text()
    assert card.startswith(f"# Predictor `{file.stem}`")
    for what in (*predictor.kinds, *predictor.dtypes, *predictor.phases):
        assert what in card
    if predictor.view.pooled:
        predictor = load(f"{file}@nvidia-l4")
    own = predictor.dataset["name"] in {one.parent.name for one in DATASETS}
    if predictor.platform.family != "cpu" and not own:
        assert "MIT" in card or "Apache-2.0" in card  # others' measurements, under their licences
    for kind in predictor.kinds:
        dtype = next(key[1] for key in predictor.regressors if key[0] == kind)
        dtype = "bfloat16" if dtype == ANY else dtype
        layers = [dataclasses.replace(layer, dtype=dtype) for layer in draw(KINDS[kind], 5, 3)]
        found = predictor.estimate(layers)
        assert (found.low_s <= found.runtime_s).all()
        assert (found.runtime_s <= found.high_s).all()
        known = {"measured", "in-range", "carried", "extrapolated", "borrowed", "held by law"}
        assert set(found.basis) <= known


@pytest.mark.parametrize("file", MODELS, ids=[file.stem for file in MODELS])
def test_a_shipped_predictor_s_bases_grow_in_proportion_to_each_dimension(file: Path) -> None:
    # but for a polynomial of the table's own columns, for which held-out rows have spoken
    regressors = [one for one in load(file).regressors.values() if one.degree != PLAIN_DEGREE]
    assert all(power == 1 for regressor in regressors for term in regressor.terms for _, power in term.powers)


def test_the_shipped_predictors_stay_small() -> None:
    sizes = [file.stat().st_size for file in MODELS]
    assert max(sizes) <= 4e6
    assert sum(sizes) <= 25e6
