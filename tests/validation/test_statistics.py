from itertools import combinations
from math import comb

import numpy
import pytest

from kltune.validation import Finding, Results, Tally, compare, level, pass_at_k
from kltune.validation.estimate import bootstrap, estimate


def run(right, samples=1):
    """Results of one run from the number of right answers to each problem."""
    return Results({str(i): Tally(int(r), samples) for i, r in enumerate(right)})


def drawn(seeds, problems, chance, seed, samples=1):
    rng = numpy.random.default_rng(seed)
    return [run(rng.binomial(samples, chance, problems), samples) for _ in range(seeds)]


@pytest.mark.parametrize(("answers", "right"), [(4, 0), (4, 1), (5, 3), (6, 6)])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(answers, right, k):
    marks = [True] * right + [False] * (answers - right)
    draws = list(combinations(marks, k))
    assert len(draws) == comb(answers, k)
    assert pass_at_k(answers, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_needs_k_answers():
    with pytest.raises(
        ValueError, match="pass@4: needs at least 4 answers to each problem, got 2"
    ):
        pass_at_k(2, 1, 4)


def test_a_greedy_run_has_wilsons_interval():
    found = level([run([1] * 9 + [0])])
    # Wilson 1927: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    z, p, n = 1.959964, 0.9, 10
    centre, reach = p + z * z / 2 / n, z * (p * (1 - p) / n + z * z / 4 / n / n) ** 0.5
    expected = ((centre - reach) / (1 + z * z / n), (centre + reach) / (1 + z * z / n))
    assert found.interval == pytest.approx(expected, abs=1e-4)
    assert found.pass_at_1 == 0.9
    # A base model that answers the same under every seed is one run, and not three that agree.
    assert level([run([1] * 9 + [0])] * 3).interval == found.interval


def test_mcnemar_counts_only_the_problems_on_which_two_runs_differ():
    old, new = run([1] * 90 + [0] * 10 + [1] * 2), run([1] * 90 + [1] * 10 + [0] * 2)
    found = compare([old], [new])
    assert (found.gained, found.lost) == (10, 2)
    # Twelve tosses of a coin: at least ten of one side, either side.
    tail = sum(comb(12, k) for k in (10, 11, 12)) / 2**12
    assert found.p_value == pytest.approx(2 * tail)
    assert found.method == "exact McNemar test"


def test_one_seed_is_never_enough_for_a_verdict():
    found = compare([run([0] * 200)], [run([1] * 200)])
    assert found.p_value < 1e-9
    assert found.finding is Finding.NOT_ENOUGH
    assert "one seed cannot tell the settings from the luck of a training" in found.reason


def test_two_equal_runs_do_not_differ():
    found = compare([run([1, 0, 1])], [run([1, 0, 1])])
    assert (found.difference, found.p_value, found.interval) == (0, 1.0, (0, 0))


def test_a_real_gain_is_found_and_a_real_loss():
    weak, strong = drawn(5, 400, 0.4, seed=1), drawn(5, 400, 0.6, seed=2)
    better, worse = compare(weak, strong), compare(strong, weak)
    assert better.finding is Finding.IMPROVED
    assert worse.finding is Finding.REGRESSED
    assert better.difference == pytest.approx(-worse.difference)
    assert better.interval[0] < 0.2 < better.interval[1]
    assert better.relative == pytest.approx(better.difference / level(weak).pass_at_1)


def test_finding_nothing_says_something_only_where_something_could_be_found():
    many = compare(drawn(6, 2000, 0.5, seed=1), drawn(6, 2000, 0.5, seed=2))
    assert many.finding is Finding.NO_DIFFERENCE
    assert many.detectable < 0.05
    few = compare(drawn(3, 30, 0.5, seed=3), drawn(3, 30, 0.5, seed=4))
    assert few.finding is Finding.NOT_ENOUGH
    assert few.detectable > 0.05


def test_luck_of_a_training_is_not_taken_for_a_gain():
    # Within each run the difference is as certain as can be; between runs it goes either way.
    good, bad = [1] * 150 + [0] * 50, [1] * 100 + [0] * 100
    old = [run(good), run(bad), run(good), run(bad)]
    new = [run(bad), run(good), run(good), run(good)]
    assert compare(old[1:2], new[1:2]).p_value < 0.001
    assert compare(old, new).finding is Finding.NOT_ENOUGH


def test_the_error_of_a_table_is_that_of_its_two_factors():
    rng = numpy.random.default_rng(0)
    seeds, problems, errors, means = 6, 150, [], []
    for _ in range(400):
        table = (
            rng.normal(0, 0.05, (seeds, 1))
            + rng.normal(0, 0.3, (1, problems))
            + rng.normal(0, 0.4, (seeds, problems))
        )
        found = estimate(table)
        errors.append(found.error)
        means.append(found.mean)
    truth = (0.05**2 / seeds + 0.3**2 / problems + 0.4**2 / seeds / problems) ** 0.5
    assert numpy.std(means) == pytest.approx(truth, rel=0.1)
    assert numpy.sqrt(numpy.mean(numpy.square(errors))) == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("luck", [0.0, 0.05, 0.2])
def test_intervals_miss_no_more_often_than_they_say(seeds, luck):
    rng = numpy.random.default_rng(seeds)
    missed = 0
    for _ in range(600):
        table = rng.normal(0, luck, (seeds, 1)) + rng.normal(0, 0.4, (seeds, 100))
        low, high = estimate(table).interval(0.05)
        missed += not low <= 0 <= high
    assert missed / 600 <= 0.05


def test_the_bootstrap_draws_whole_problems():
    rng = numpy.random.default_rng(5)
    by_problem = rng.normal(0, 1, (1, 100))
    few, many = bootstrap(by_problem, 0.05), bootstrap(numpy.repeat(by_problem, 50, axis=0), 0.05)
    # Fifty copies of an answer are no more evidence than one.
    assert few == pytest.approx(many)
    assert few[1] - few[0] == pytest.approx(2 * 1.96 * 0.1, rel=0.25)


def test_several_answers_to_each_problem_make_aime_worth_something():
    one = compare(drawn(3, 30, 0.5, 1), drawn(3, 30, 0.5, 2))
    many = compare(drawn(3, 30, 0.5, 3, samples=32), drawn(3, 30, 0.5, 4, samples=32))
    assert many.detectable < one.detectable / 2


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="different problems"):
        compare([run([1, 0])], [run([1])])
    with pytest.raises(ValueError, match="2 runs cannot be paired with 1"):
        compare([run([1]), run([1])], [run([1])])
    with pytest.raises(ValueError, match="there are none"):
        level([])
