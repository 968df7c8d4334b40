import itertools
import random

from jaxperf.result.intervals import clip, difference, intersection, most_at_once, total_length, union

GRID = 60


def moments(intervals):
    """The unit stretches [i, i + 1) that integer intervals cover: the slow and obvious way."""
    return {i for a, b in intervals for i in range(a, b)}


def random_intervals(rng):
    starts = [rng.randrange(GRID) for _ in range(rng.randrange(0, 12))]
    return [(a, min(GRID, a + rng.randrange(0, 15))) for a in starts]


def test_a_known_intersection():
    first, second = [(0, 4), (6, 10)], [(3, 7)]
    assert intersection(first, second) == [(3, 4), (6, 7)]
    assert total_length(first) == 8


def test_random_intervals_agree_with_counting_moments():
    for seed in range(200):
        rng = random.Random(seed)
        a, b = random_intervals(rng), random_intervals(rng)
        low = rng.randrange(GRID)
        high = rng.randrange(low, GRID + 1)
        assert moments(union(a)) == moments(a)
        assert all(start < end for start, end in union(a))
        assert all(x[1] < y[0] for x, y in itertools.pairwise(union(a)))
        assert total_length(a) == len(moments(a))
        assert moments(intersection(a, b)) == moments(a) & moments(b)
        assert moments(difference(a, b)) == moments(a) - moments(b)
        assert intersection(a, b) == intersection(b, a) == union(intersection(a, b))
        assert moments(clip(a, low, high)) == moments(a) & set(range(low, high))
        assert most_at_once(a) == max((sum(s <= i < e for s, e in a) for i in range(GRID)), default=0)
