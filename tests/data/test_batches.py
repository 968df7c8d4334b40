import functools

import numpy as np
import pytest

from jaxperf.data import epoch_batches, padded_batches
from jaxperf.errors import JaxperfError

N, B = 23, 5


def data(n=N):
    labels = np.arange(n, dtype=np.int32)
    return np.broadcast_to(labels.astype(np.uint8)[:, None, None, None], (n, 2, 2, 1)).copy(), labels


def order(**options):
    return [int(label) for _, y in epoch_batches(*data(), batch_size=B, **options) for label in y]


def test_batches_have_one_shape_keep_labels_and_an_order_of_seed_and_epoch_alone():
    batches = list(epoch_batches(*data(), batch_size=B, seed=0, epoch=0))
    assert len(batches) == N // B == 4
    for x, y in batches:
        assert x.shape == (B, 2, 2, 1) and x.dtype == np.uint8
        assert y.shape == (B,) and y.dtype == np.int32
        assert (x == y[:, None, None, None]).all()
    assert order(seed=3, epoch=2) == order(seed=3, epoch=2)
    orders = {tuple(order(seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert tuple(range(20)) not in orders


def test_updates_repeat_the_data_in_a_new_order_each_pass():
    seen = order(seed=0, epoch=0, updates=10)
    assert len(seen) == 10 * B
    first, second = seen[:20], seen[20:40]
    assert len(set(first)) == len(set(second)) == 20  # one pass shows no example twice
    assert first != second
    assert first == order(seed=0, epoch=0)
    assert first[:10] == order(seed=0, epoch=0, updates=2)


def test_evaluation_sees_every_example_once_in_batches_of_one_shape():
    for n in (1, 4, 5, 6, 10, 23):
        seen = []
        for x, y, real in padded_batches(*data(n), batch_size=B):
            assert x.shape == (B, 2, 2, 1) and y.shape == real.shape == (B,)
            assert x.dtype == np.uint8 and y.dtype == np.int32 and real.dtype == np.bool_
            assert (x[real] == y[real][:, None, None, None]).all()
            assert not x[~real].any() and not y[~real].any()
            seen += y[real].tolist()
        assert seen == list(range(n))


EPOCH, PADDED = functools.partial(epoch_batches, seed=0, epoch=0), padded_batches


@pytest.mark.parametrize(("batches", "n", "labels", "batch_size", "message"), [
    (EPOCH, N, N, -3, "batch size -3 is not positive; use"),
    (PADDED, N, N, -3, "batch size -3 is not positive; use"),
    (EPOCH, N, N, 24, "batch size 24 is larger than the data, 23 examples; use 23"),
    (EPOCH, N, 22, B, "23 images and 22 labels; "), (PADDED, N, 22, B, "23 images and 22 labels; "),
    (PADDED, 0, 0, B, "0 images and 0 labels; "),
])  # fmt: skip
def test_what_cannot_be_is_refused(batches, n, labels, batch_size, message):
    with pytest.raises(JaxperfError, match=message):
        next(batches(data(n)[0], data(labels)[1], batch_size=batch_size))
