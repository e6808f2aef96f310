"""The learner on functions that are known."""

import dataclasses

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.aiconfigurator import refit
from neuralpower.layers.columns import scramble
from neuralpower.learn.fitting import fit as regress
from neuralpower.learn.fitting import held_out, intervals, lasso, slopes
from neuralpower.learn.fitting.lasso import polynomial
from neuralpower.learn.fitting.problem import Problem, Term, join
from neuralpower.learn.fitting.slopes import Alignment, fit_alignment, speed_exponent
from neuralpower.learn.fitting.trees import MOST_BINS, cuts_of, flatten, right_children
from neuralpower.learn.regressor import Regressor


def problem(rows: int, seed: int = 0, noise: float = 0.0, low: float = 1, high: float = 1024) -> Problem:
    """T = 2e-6 + 3e-9 a b + 1e-8 b, with log-normal noise."""
    generator = np.random.default_rng(seed)
    a, b = (np.exp(generator.uniform(np.log(low), np.log(high), rows)).round() for _ in range(2))
    t = (2e-6 + 3e-9 * a * b + 1e-8 * b) * np.exp(noise * generator.normal(size=rows))
    axes = {"a": np.log2(a), "b": np.log2(b)}
    return Problem(
        {"a": a, "b": b},
        {"ab_past": np.maximum(a * b - 1e5, 0)},
        np.column_stack([axes["a"], axes["b"]]),
        ("a", "b"),
        axes,
        t,
        np.ones(rows),
        scramble(np.arange(rows) + 10**6 * seed),
        a * b,
        np.zeros(rows),
        scramble(np.arange(rows) + 10**6 * seed),
    )


def fit(asked: Problem, learner: str = "hybrid") -> Regressor:
    return regress.fit(asked, learner).regressor


def predicted(regressor, asked: Problem) -> np.ndarray:
    return regressor.predict(asked)[0]


def test_a_polynomial_has_every_product_once() -> None:
    # 1; a, b, c; ab, ac, bc; abc: no squares
    assert [str(term) for term in polynomial(("a", "b", "c"), 2)] == ["1", "a", "b", "c", "a b", "a c", "b c"]
    assert [str(term) for term in polynomial(("a", "b", "c"), 3)] == [
        "1",
        "a",
        "b",
        "c",
        "a b",
        "a c",
        "b c",
        "a b c",
    ]
    one = dataclasses.replace(problem(1), dimensions={"a": np.array([3.0])}, special={"s": np.array([7.0])})
    matrix = one.matrix([Term(), Term((("a", 2),)), Term(special="s")])
    assert matrix.tolist() == [[1, 9, 7]]


def test_a_base_grows_in_proportion_to_each_dimension_beyond_the_rows() -> None:
    squared = problem(300)
    squared = dataclasses.replace(squared, target=1e-6 + 1e-12 * squared.dimensions["a"] ** 2)
    regressor = fit(squared, learner="lasso")
    assert all(power == 1 for term in regressor.terms for _, power in term.powers)
    far, farther = (
        dataclasses.replace(problem(1), dimensions={"a": np.array([a]), "b": np.array([1.0])})
        for a in (1e9, 2e9)
    )
    assert predicted(regressor, farther) <= 2 * predicted(regressor, far) * (1 + 1e-9)


def test_a_known_polynomial_is_recovered_inside_and_beyond_the_box() -> None:
    regressor = fit(problem(300), learner="lasso")
    for asked in (problem(100, seed=1), problem(100, seed=2, low=1024, high=16384)):
        assert np.max(np.abs(predicted(regressor, asked) / asked.target - 1)) < 0.02
    assert regressor.scores.mape < 0.01
    assert (regressor.weights > 0).all()


def test_a_regressor_without_residual_is_chosen_where_the_base_says_it_all() -> None:
    assert fit(problem(200), learner="lasso").trees is None
    noisy = fit(problem(300, noise=0.05))
    assert noisy.scores.median < 0.06
    assert noisy.scores.rows == 300


def rippled() -> Problem:
    """As `problem`, but sizes that are odd cost 60 % more, as those that do not fill a tile do."""
    smooth = problem(500)
    odd = smooth.dimensions["a"] % 2
    return dataclasses.replace(
        smooth,
        target=smooth.target * np.where(odd == 0, 1.0, 1.6),
        features=np.column_stack([smooth.features, odd]),
        feature_names=("a", "b", "odd"),
    )


def test_the_residual_learns_what_the_base_cannot_say() -> None:
    regressor = fit(rippled())
    assert regressor.trees is not None
    assert regressor.scores.median < 0.4 * regressor.scores.median_base


def test_a_target_that_the_device_bounds_is_trained_however_far_it_lies_from_the_base() -> None:
    # every third row, told by its feature, takes 8 times as long: log 8 = 2.1, above the 0.7 that a residual
    # may be
    asked = problem(300)
    odd = np.arange(300) % 3 == 0
    asked = dataclasses.replace(
        asked,
        features=np.column_stack([asked.features, odd]),
        feature_names=("a", "b", "odd"),
        target=asked.target * np.where(odd, 8.0, 1.0),
    )
    base = lasso.fit_base(asked, [lasso.Part([Term(), Term((("a", 1), ("b", 1)))], 1e-4, 2)])
    t0 = base.base(asked)
    far = {}
    for bounded in (False, True):
        trees = held_out.fit_residual(dataclasses.replace(asked, bounded=bounded), base)
        predicted = t0 * np.exp(trees.predict(np.column_stack([asked.features, np.log2(t0)])))
        far[bounded] = float(np.median(np.abs(predicted / asked.target - 1)[odd]))
    assert far[True] < 0.1 < 0.3 < far[False]


def test_the_residual_fades_outside_the_box() -> None:
    regressor = dataclasses.replace(fit(rippled()), reach=1.0)
    far = problem(50, seed=5, low=2**20, high=2**22)
    asked = dataclasses.replace(far, features=np.column_stack([far.features, far.dimensions["a"] % 2]))
    base = regressor.base(asked)
    assert np.max(np.abs(predicted(regressor, asked) / base - 1)) < 0.02
    assert (regressor.outside(asked.axes) > 15).all()


def test_the_residual_reaches_as_far_as_it_pays() -> None:
    everywhere = rippled()
    assert fit(everywhere).reach == np.inf
    a = everywhere.dimensions["a"]
    wave = 1.5 * np.sin(2.5 * everywhere.axes["a"])  # says nothing of what comes beyond
    among = fit(dataclasses.replace(everywhere, target=problem(500).target * np.exp(wave)))
    assert 0 < among.reach < np.inf
    assert len(a) == 500


def test_predictions_are_positive_and_grow_far_outside() -> None:
    regressor = fit(problem(200, noise=0.1))
    sizes = [problem(1, seed=9, low=s, high=s) for s in (2**11, 2**13, 2**15, 2**17)]
    values = [predicted(regressor, asked)[0] for asked in sizes]
    assert values[0] > 0
    assert values == sorted(values)


def test_rows_that_the_terms_do_not_describe_leave_the_level_alone() -> None:
    # one row in five takes three times as long for a reason that no term says: the others are predicted as
    # they are
    asked = problem(300, noise=0.02)
    slow = np.arange(300) % 5 == 0
    regressor = fit(dataclasses.replace(asked, target=np.where(slow, 3, 1) * asked.target), learner="lasso")
    ratio = predicted(regressor, asked)[~slow] / asked.target[~slow]
    assert np.median(ratio) == pytest.approx(1, abs=0.02)


def test_one_corrupt_row_moves_no_prediction_by_more_than_a_hundredth() -> None:
    clean, asked = problem(400, noise=0.02), problem(200, seed=3)
    reference = predicted(fit(clean, learner="lasso"), asked)
    for factor in (1e-3, 1e3):
        runtime = clean.target.copy()
        runtime[17] *= factor
        corrupt = predicted(fit(dataclasses.replace(clean, target=runtime), learner="lasso"), asked)
        assert np.max(np.abs(corrupt / reference - 1)) < 0.01


def few(rows: int, seed: int = 0, noise: float = 0.0, factor: float = 1.0) -> Problem:
    """`problem` with a term for all of its work; targets are too high by this factor."""
    asked = problem(rows, seed, noise)
    return dataclasses.replace(asked, special={"ab": asked.size}, target=factor * asked.target)


@pytest.mark.parametrize("factor", [1e-3, 1 / 20, 20, 1e3])
@pytest.mark.parametrize("rows", [12, 20, 29])
def test_one_corrupt_row_of_a_few_changes_nothing(rows: int, factor: float) -> None:
    clean = few(rows, noise=0.1)
    found = regress.fit(join([clean, few(1, seed=4, factor=factor)]))
    assert np.flatnonzero(found.contradicting).tolist() == [rows]
    assert found.regressor.weights.tolist() == fit(clean).weights.tolist()


def test_of_a_few_good_rows_none_is_left_out() -> None:
    for seed in range(8):
        for rows in (10, 16, 24):
            assert not regress.fit(few(rows, seed, noise=0.2), learner="lasso").contradicting.any()


def test_trees_are_evaluated_to_the_last_digit_as_scikit_learn_does() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(800, 3))
    y = np.sin(x[:, 0]) + x[:, 1] * (x[:, 2] > 0)
    fresh = generator.normal(size=(5000, 3))
    for leaves in (5, 31, 64):
        model = HistGradientBoostingRegressor(max_iter=50, max_leaf_nodes=leaves, min_samples_leaf=3).fit(
            x, y
        )
        assert np.array_equal(flatten(model, 0.0, "abc").predict(fresh), model.predict(fresh))


def test_rows_of_one_configuration_share_a_fold() -> None:
    repeated = problem(40).at(np.repeat(np.arange(40), 3))
    jittered = dataclasses.replace(repeated, target=repeated.target * np.tile([1.0, 1.1, 0.9], 40))
    assert (
        fit(jittered, learner="lasso").scores.mape > 0.05
    )  # a row is never predicted from its own repetition


def test_how_far_layers_follow_the_machines_speed_is_trained() -> None:
    smooth, generator = problem(400), np.random.default_rng(8)
    slowdown = np.exp(generator.uniform(0, 0.4, 400))
    follows = dataclasses.replace(smooth, slowdown=slowdown, target=smooth.target * slowdown**0.7)
    regressor = fit(follows, learner="lasso")
    assert regressor.exponent == pytest.approx(0.7, abs=0.05)
    assert np.median(np.abs(predicted(regressor, smooth) / smooth.target - 1)) < 0.02
    assert fit(smooth, learner="lasso").exponent == 0.0


def test_a_device_of_another_level_says_little_of_what_distance_adds() -> None:
    rows = {0: 200, 1: 200, 2: 200, 3: 100}
    parts = [problem(count, seed=device, noise=0.02) for device, count in rows.items()]
    # octaves of the devices' own axis; held out in turn, the first lies 0.5 and the last 0.15 outside of what
    # is left
    own = {0: 0.0, 1: 1.0, 2: 0.5, 3: 1.15}
    several = [
        dataclasses.replace(
            part,
            dimensions={},
            special={
                "work": 3e-9 * part.dimensions["a"] * part.dimensions["b"] + 1e-8 * part.dimensions["b"]
            },
            axes={"own": np.full(len(part), own[device])},
            target=part.target * (2 if device == 3 else 1),
            device=np.full(len(part), device),
            degrees=(0,),
        )
        for device, part in enumerate(parts)
    ]
    spread = fit(join(several), learner="lasso").spread
    # levels 1, 1, 1 and 2: sqrt(log(2)^2 / 4) = 0.35 of common deviation. By the last device alone the rest
    # of it, 0.69 - 0.35, would come in 0.15 octaves: 2.3 more for each octave. 100 rows say so, 200 of the
    # first do not.
    assert spread.common == pytest.approx(np.log(2) / 2, abs=0.05)
    assert spread.common_growth < 0.1


def test_what_only_large_rows_show_widens_the_intervals_far_out() -> None:
    # of a b what is past a bound costs eight times as much: three rows in ten tell, the seven smallest do not
    asked = problem(400, noise=0.02)
    more = np.maximum(asked.size - float(np.quantile(asked.size, 0.7)), 0)
    asked = dataclasses.replace(
        asked, target=asked.target + 8 * 3e-9 * more, special={"more": more}, degrees=(2,)
    )
    choice = regress._choose(asked, "lasso")
    (far,) = regress._far(choice)
    times, held = far
    # 280 small rows and the 40 largest, the 80 between are in neither
    assert len(times) == 320 and np.isfinite(held.base).sum() == 40
    near = intervals.spread_of(choice.problem, choice.tests, choice.reach, [])
    both = intervals.spread_of(choice.problem, choice.tests, choice.reach, [far])
    assert both.growth > near.growth
    assert regress.fit(asked, "lasso").regressor.spread.growth == both.growth


def test_rows_that_all_take_a_launch_are_trained() -> None:
    # 10 us each: one prediction for all, and an interval about it
    asked = problem(200)
    regressor = fit(
        dataclasses.replace(asked, target=np.full(200, 1e-5), special={}, degrees=(1,)), learner="lasso"
    )
    assert predicted(regressor, asked) == pytest.approx(1e-5)


def test_a_fit_is_the_same_each_time() -> None:
    first, second = fit(problem(120, noise=0.1)), fit(problem(120, noise=0.1))
    assert first.terms == second.terms
    assert np.array_equal(first.weights, second.weights)


def test_right_children_follow_from_the_order_of_the_nodes() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(600, 4))
    model = HistGradientBoostingRegressor(max_iter=20, max_leaf_nodes=17, min_samples_leaf=2).fit(
        x, x[:, 0] * x[:, 1]
    )
    trees = flatten(model, 0.0, "abcd")
    assert (trees.right >= 0).sum() > 100
    assert np.array_equal(right_children(trees.feature), trees.right)


def test_layers_follow_the_machines_speed_by_an_exponent() -> None:
    generator = np.random.default_rng(0)
    slowdown = np.exp(generator.uniform(0, 0.3, 200))
    ratio = (slowdown / np.median(slowdown)) ** 0.7 * np.exp(0.02 * generator.normal(size=200))
    ratio[np.argsort(slowdown)[-3:]] *= 5  # rows far off count for nothing
    assert speed_exponent(slowdown, ratio, (0.5, 0.5)) == pytest.approx(0.7, abs=0.05)
    # a machine that never changed its speed says nothing, and what it slows down is never taken to be quicker
    assert speed_exponent(np.ones(200), ratio, (0.4, 0.2)) == pytest.approx(0.4)
    assert speed_exponent(slowdown, 1 / slowdown, (0.4, 0.2)) == 0.0


# ---- the mean of two bases, and alignment ----


@pytest.mark.parametrize("best", [0, 1, 2])
def test_of_the_base_with_the_optional_terms_that_without_and_their_mean_the_least_cost_is_taken(
    best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what is past 1e5 costs twice as much, so that the base without that term says something else
    asked = problem(300, noise=0.05)
    asked = dataclasses.replace(
        asked, target=asked.target + 3e-9 * asked.special["ab_past"], optional=("ab_past",), degrees=(1,)
    )
    choose, made = regress._choose, []

    def priced(*arguments: object) -> object:
        made.append(choose(*arguments))
        return dataclasses.replace(made[-1], cost=float(len(made) - 1 != best))

    monkeypatch.setattr(regress, "_choose", priced)
    found = predicted(fit(asked, learner="lasso"), asked)
    alone = [predicted(lasso.fit_base(asked, choice.parts), asked) for choice in made[:2]]
    assert np.max(np.abs(alone[0] / alone[1] - 1)) > 0.1
    assert len(made) == 3
    np.testing.assert_allclose(found, [*alone, (alone[0] + alone[1]) / 2][best], rtol=1e-9)


@pytest.mark.parametrize(("cost", "mean"), [(1.0, True), (0.995, True), (0.98, False)])
def test_the_mean_of_two_bases_is_taken_unless_one_is_surely_better(
    cost: float, mean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dataclasses.replace(problem(100), optional=("ab_past",), degrees=(1,))
    choose, costs = regress._choose, iter((cost, 1.1, 1.0))
    monkeypatch.setattr(regress, "_choose", lambda *a: dataclasses.replace(choose(*a), cost=next(costs)))
    assert len(regress.fit(asked, "lasso").parts) == (2 if mean else 1)


def aligned_problem(rows: int, seed: int = 0, saves: float = 0.12, floor: float = 1e-5) -> Problem:
    """As `problem`; each eighth row, which is aligned, takes `saves` less of log(t), down to the floor."""
    asked = problem(rows, seed, noise=0.03)
    share = np.where(np.arange(rows) % 8 == 0, 1.0, 0.25)
    unaligned = asked.target + floor
    return dataclasses.replace(
        asked,
        special={**asked.special, "aligned": share, "odd": np.asarray(np.arange(rows) % 2 == 1, dtype=float)},
        target=np.maximum(unaligned * np.exp(-saves * share), floor),
        shares=("aligned", "odd"),
    )


@pytest.mark.parametrize("learner", ["lasso", "hybrid"])
def test_what_alignment_saves_is_trained_separately_and_holds_outside_the_box(learner: str) -> None:
    asked = aligned_problem(1000)
    regressor = fit(asked, learner)
    assert regressor.alignment is not None
    assert regressor.alignment.slopes["aligned"] == pytest.approx(0.12, abs=0.02)
    assert abs(regressor.alignment.slopes["odd"]) < 0.01  # every second row, by nothing
    assert not {"aligned", "odd"} & {term.special for term in regressor.terms}
    # both sides 8 times as long as any that was known: there the residual is silent. exp(-0.12 * 0.75) =
    # 0.914
    far = dataclasses.replace(asked, dimensions={n: 8.0 * v for n, v in asked.dimensions.items()})
    far = dataclasses.replace(
        far, axes={n: v + 3 for n, v in asked.axes.items()}, features=asked.features + 3
    )
    levels = {}
    for share in (0.25, 1.0):
        shares = {"aligned": np.full(len(far), share), "odd": np.zeros(len(far))}
        levels[share] = predicted(regressor, dataclasses.replace(far, special={**far.special, **shares}))
    long = levels[0.25] > 1e-4
    assert np.median(levels[1.0][long] / levels[0.25][long]) == pytest.approx(0.914, abs=0.02)


def test_a_floor_hides_what_alignment_saves() -> None:
    # t^4 = floor^4 + work^4: at the floor nothing shows, at twice the floor 15 of 16 parts, far above it all
    alignment = Alignment({"aligned": 0.1, "other": 0.02}, 1e-5)
    shares = {"aligned": np.array([1.0, 1.0, 1.0, 0.5]), "other": np.array([0.0, 0.0, 1.0, 0.0])}
    saved = alignment.saved(shares, np.array([1e-5, 2e-5, 1.0, 2e-5]))
    np.testing.assert_allclose(saved, [0, 0.1 * 15 / 16, 0.12, 0.05 * 15 / 16], atol=1e-12)


def test_alignment_can_cost_and_is_none_where_nothing_stands_out_from_the_floor() -> None:
    costly = fit(aligned_problem(1000, saves=-0.1), "lasso").alignment
    assert costly is not None
    assert costly.slopes["aligned"] == pytest.approx(-0.1, abs=0.02)
    asked = aligned_problem(200)
    assert fit(dataclasses.replace(asked, target=np.full(200, 1e-5), degrees=(1,)), "lasso").alignment is None


def test_noise_alone_makes_nothing_faster() -> None:
    # ten shares that say nothing, 10 % noise. A slope's variance given 300 rows: 1 / (300 * 0.25 / 0.01 + 1 /
    # 0.03^2), so that ten of them at 1 rather than at their means of 0.5 save 0 +- 0.5 * sqrt(10) * 0.0108 =
    # 0.017; the mean of 30 +- 0.003
    saved = []
    for seed in range(30):
        generator = np.random.default_rng(seed)
        shares = {f"share_{k}": generator.integers(0, 2, 300).astype(float) for k in range(10)}
        base = np.exp(generator.uniform(-8, -2, 300))
        found = fit_alignment(shares, {}, base, base * np.exp(0.1 * generator.normal(size=300)), np.ones(300))
        assert found is not None
        saved.append(sum(found.slopes.values()) / 2)
    assert abs(np.mean(saved)) < 0.01
    assert np.std(saved) < 0.025


def test_rows_far_off_say_as_much_of_alignment_as_others() -> None:
    # every fifth of the aligned rows takes twice as long: a mean would say 0.15 - 0.2 * log(2) = 0.01
    generator = np.random.default_rng(0)
    share = (np.arange(1000) % 2).astype(float)
    base = np.exp(generator.uniform(-8, -2, 1000))
    far = (share == 1) & (np.arange(1000) % 10 == 1)
    took = base * np.exp(0.03 * generator.normal(size=1000) - 0.15 * share) * np.where(far, 2.0, 1.0)
    found = fit_alignment({"aligned": share}, {}, base, took, np.ones(len(base)))
    assert found is not None
    assert found.slopes["aligned"] == pytest.approx(0.14, abs=0.02)


def test_what_alignment_saves_of_long_layers_counts_for_more() -> None:
    # half of the rows save 0.2, half nothing; the first count nine times as much: 0.18
    generator = np.random.default_rng(0)
    share, long = generator.integers(0, 2, 2000).astype(float), np.arange(2000) % 2 == 0
    base = np.exp(generator.uniform(-8, -2, 2000))
    took = base * np.exp(0.1 * generator.normal(size=2000) - 0.2 * share * long)
    found = fit_alignment({"aligned": share}, {}, base, took, np.where(long, 9.0, 1.0))
    assert found is not None
    assert found.slopes["aligned"] == pytest.approx(0.18, abs=0.02)


def test_few_aligned_rows_are_not_believed() -> None:
    # three of 60 are aligned, and 5 % noise: 3 * 0.95 / 0.05^2 of information beside 1 / 0.03^2, so about
    # half is believed
    share = np.zeros(60)
    share[:3] = 1.0
    generator = np.random.default_rng(1)
    base = np.exp(generator.uniform(-8, -2, 60))
    took = base * np.exp(0.05 * generator.normal(size=60) - 0.2 * share)
    found = fit_alignment({"aligned": share}, {}, base, took, np.ones(len(base)))
    assert found is not None
    assert 0.03 < found.slopes["aligned"] < 0.17


@pytest.mark.parametrize(("sizes", "believed"), [(8, False), (400, True)])
def test_a_size_that_is_fast_for_reasons_of_its_own_says_little_of_its_alignment(
    sizes: int, believed: bool
) -> None:
    # every fourth size is aligned, which saves 0.1; each size is up to 0.2 faster or slower by itself; 50
    # rows of a size
    generator = np.random.default_rng(3)
    size = np.repeat(np.arange(sizes), 50)
    share, own = (size % 4 == 0).astype(float), generator.uniform(-0.2, 0.2, sizes)
    base = np.exp(generator.uniform(-8, -2, len(size)))
    took = base * np.exp(0.02 * generator.normal(size=len(size)) - 0.1 * share + own[size])
    found = [
        fit_alignment({"aligned": share}, sides, base, took, np.ones(len(base)))
        for sides in ({}, {"size": size})
    ]
    careless, careful = (alignment.slopes["aligned"] for alignment in found if alignment)
    if believed:  # s.e. of the mean of 100 sizes: 0.115 / 10
        assert careful == pytest.approx(0.1, abs=0.035)
    else:  # two sizes are aligned: rows that were counted alone would be believed as they are
        least = np.median(np.log(base / took)[share == 1]) - np.median(np.log(base / took)[share == 0])
        assert careless == pytest.approx(least, abs=0.03)
        assert abs(careful) < abs(careless) / 2


def test_rows_without_a_part_in_common_each_count_and_those_of_one_error_as_one() -> None:
    generator = np.random.default_rng(0)
    group, error = np.repeat(np.arange(100), 20), generator.normal(size=2000)
    assert slopes._apart(group, error).min() > 0.8
    np.testing.assert_allclose(slopes._apart(group, error[group]), 1 / 20, rtol=1e-6)
    # as much in common as apart: (1 + 1) / (1 + 20)
    both = slopes._apart(group, error + generator.normal(size=100)[group])
    assert both == pytest.approx(np.full(2000, 2 / 21), rel=0.2)
    for alone in (np.zeros(2000, dtype=int), np.arange(2000)):
        assert (slopes._apart(alone, error) == 1).all()


def test_the_residual_of_several_devices_is_without_their_levels() -> None:
    asked = problem(400)
    slow = np.arange(400) % 2
    apart = dataclasses.replace(asked, target=asked.target * (1 + slow), device=slow)
    base = regress.fit(asked, "lasso").regressor
    trees = held_out.fit_residual(apart, base)
    found = trees.predict(np.column_stack([asked.features, np.log2(base.base(asked))]))
    assert np.abs(found).max() < 0.05


def test_between_sizes_that_were_measured_a_curve_s_residual_is_a_line() -> None:
    sizes, ranks = np.tile(np.arange(20.0), 8), np.repeat([1.0, 2.0] * 4, 20)
    plain = dataclasses.replace(
        problem(160),
        features=np.column_stack([np.arange(160.0), sizes, ranks]),
        feature_names=("number", "size", "ranks"),
        target=np.exp(np.where(sizes < 10, 0.2, -0.2) * (ranks == 1)),  # another protocol from 10 on
    )
    base = lasso.fit_base(plain, [lasso.Part([Term()], 1e-4, 0)])
    asked = np.array([(0, size, 1, 0) for size in (5, 9.25, 9.75, 15)])
    found = {}
    for curve in ((), ("size", "ranks")):
        trees = held_out.fit_residual(dataclasses.replace(plain, curve=curve), base)
        found[bool(curve)] = trees.predict(asked) + np.log(base.base(plain)[0])
    np.testing.assert_allclose(found[True], [0.2, 0.1, -0.1, -0.2], atol=0.03)
    np.testing.assert_allclose(found[False], [0.2, 0.2, -0.2, -0.2], atol=0.03)  # of the nearest size


def test_a_feature_is_split_between_its_values_or_at_quantiles() -> None:
    values = np.array([3.0, 1.0, 1.0, 2.0])
    assert cuts_of(values).tolist() == [1.5, 2.5]
    many = cuts_of(np.arange(10_000.0))
    assert len(many) == MOST_BINS - 1
    assert np.ptp(np.diff(many)) <= 1


def test_a_row_has_no_part_in_what_it_is_corrected_by(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = aligned_problem(400)
    folds = held_out.folds_of(asked)
    asked.special["odd"][:] = np.arange(400)  # tells which rows are looked at
    looked_at = []

    def learn(shares: dict[str, np.ndarray], sides: dict[str, np.ndarray], *others: np.ndarray) -> Alignment:
        assert set(shares) == {"aligned", "odd"}
        assert {len(column) for column in (*shares.values(), *sides.values(), *others)} == {
            len(shares["odd"])
        }
        looked_at.append(set(shares["odd"].astype(int)))
        return Alignment({"aligned": float(len(looked_at))}, 0.0)

    monkeypatch.setattr(lasso, "fit_alignment", learn)
    corrected, whole = lasso.unaligned(asked, asked.target, folds)
    for number, fold in enumerate(np.unique(folds)):
        held = np.flatnonzero(folds == fold)
        assert looked_at[number] == set(range(400)) - set(held)
        slope = (number + 1) * asked.special["aligned"][held]
        np.testing.assert_allclose(corrected.target[held], asked.target[held] * np.exp(slope))
    assert looked_at[-1] == set(range(400))
    assert whole == Alignment({"aligned": float(len(looked_at))}, 0.0)


def test_rows_that_are_fitted_again_keep_what_alignment_saves() -> None:
    asked, other = aligned_problem(600), aligned_problem(600, seed=1)
    fitted = regress.fit(asked, "lasso")
    again = refit(other, fitted)
    assert again.alignment == fitted.regressor.alignment
    error = np.log(predicted(again, other) / other.target)
    aligned = other.special["aligned"] == 1
    assert abs(np.median(error[aligned]) - np.median(error[~aligned])) < 0.03  # of 0.09
