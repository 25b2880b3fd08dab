"""Which samples a step trains on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from corpus_made import made_store
from hypothesis import given
from hypothesis import strategies as st

from ratrain.corpus.held_out import MASKED, HeldOut
from ratrain.corpus.order import SampleOrder
from ratrain.corpus.samples import Samples
from ratrain.corpus.store import TokenStore
from ratrain.errors import SpecError

seeds = st.integers(0, 1 << 70)

# ---- the order --------------------------------------------------------------------------


@given(st.integers(1, 5000), seeds, st.integers(0, 1 << 40), st.booleans())
def test_an_epoch_holds_every_sample_once(
    samples: int, seed: int, epoch: int, shuffle: bool
) -> None:
    order = SampleOrder(samples, seed, shuffle)
    samples_read = order.at(np.arange(epoch * samples, (epoch + 1) * samples))
    assert sorted(samples_read.tolist()) == list(range(samples))


@given(st.integers(1, 1 << 50), seeds, st.lists(st.integers(0, 1 << 60), max_size=20))
def test_where_a_sample_stands_does_not_depend_on_what_else_is_asked(
    samples: int, seed: int, positions: list[int]
) -> None:
    order = SampleOrder(samples, seed)
    together = order.at(np.array(positions, np.int64))
    alone = [int(order.at(position)) for position in positions]
    assert together.tolist() == alone
    assert all(0 <= index < samples for index in alone)


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 40), seeds)
def test_the_steps_of_an_epoch_share_no_sample(samples: int, sequences: int, seed: int) -> None:
    order = SampleOrder(samples, seed)
    steps = [order.step(step, sequences).tolist() for step in range(samples // sequences)]
    seen = [index for step in steps for index in step]
    assert len(set(seen)) == len(seen)


@given(st.integers(1, 50), st.integers(1, 70), st.integers(0, 1000))
def test_without_shuffling_the_samples_come_in_order_for_ever(
    samples: int, sequences: int, step: int
) -> None:
    samples_read = SampleOrder(samples, 1, shuffle=False).step(step, sequences)
    first = step * sequences
    assert samples_read.tolist() == [k % samples for k in range(first, first + sequences)]


def test_the_order_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert SampleOrder(10, 7).at(np.arange(20)).tolist() == ORDER_OF_10
    assert SampleOrder(10**9, 7).at(np.arange(5)).tolist() == ORDER_OF_1E9


ORDER_OF_10 = [6, 4, 5, 1, 8, 3, 9, 0, 7, 2, 3, 5, 7, 9, 0, 2, 6, 1, 8, 4]
ORDER_OF_1E9 = [432336885, 76229006, 779914681, 197644778, 663289108]


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {
        tuple(SampleOrder(50, seed).at(np.arange(e * 50, e * 50 + 50)).tolist())
        for seed in range(20)
        for e in range(20)
    }
    assert len(orders) == 400


@pytest.mark.parametrize("samples", [100, 1000, 65_536, 65_537, 300_001])
def test_a_shuffled_epoch_looks_like_chance(samples: int) -> None:
    """Of a random permutation neighbours are n/3 apart on average and one point stays fixed."""
    order = SampleOrder(samples, 3).at(np.arange(samples))
    apart = np.abs(np.diff(order)).mean() / samples
    assert apart == pytest.approx(1 / 3, abs=1 / np.sqrt(samples))
    assert (order == np.arange(samples)).sum() <= 6
    assert abs(np.corrcoef(order, np.arange(samples))[0, 1]) < 4 / np.sqrt(samples)


@pytest.mark.parametrize("samples", [2, 3, 5, 20])
def test_every_sample_comes_first_as_often_over_the_epochs(samples: int) -> None:
    epochs = 4000
    firsts = SampleOrder(samples, 11).at(np.arange(epochs) * samples)
    counts = np.bincount(firsts, minlength=samples)
    expected = epochs / samples
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_what_cannot_be_ordered_is_refused() -> None:
    with pytest.raises(SpecError, match="0 samples"):
        SampleOrder(0)
    with pytest.raises(SpecError, match="position -1"):
        SampleOrder(5).at([-1])


# ---- batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_is_whole_samples_and_the_tokens_that_follow(tmp_path: Path, shuffle: bool) -> None:
    samples = Samples(made_store(tmp_path / "s", 1003), 10, 7, seed=5, shuffle=shuffle)
    assert samples.count == 100
    for step in range(30):
        tokens, targets = samples.batch(step, 0, 7)
        assert tokens.shape == targets.shape == (7, 10)
        assert tokens.dtype == targets.dtype == np.int64
        np.testing.assert_array_equal(tokens[:, 0], samples.order.step(step, 7) * 10)
        np.testing.assert_array_equal(tokens, tokens[:, :1] + np.arange(10))
        np.testing.assert_array_equal(targets, tokens + 1)


def test_an_epoch_trains_every_token_once(tmp_path: Path) -> None:
    samples = Samples(made_store(tmp_path / "s", 1003), 10, 4, seed=5)
    seen = np.concatenate([samples.batch(step, 0, 4).tokens.ravel() for step in range(25)])
    assert sorted(seen.tolist()) == list(range(1000))


@pytest.mark.parametrize(("tokens", "count"), [(11, 1), (20, 1), (21, 2), (31, 3)])
def test_a_sample_needs_the_token_after_it(tmp_path: Path, tokens: int, count: int) -> None:
    assert Samples(made_store(tmp_path / "s", tokens), 10, 1).count == count


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return made_store(tmp_path_factory.mktemp("store"), 401)


@given(
    data=st.data(),
    sequences=st.integers(1, 24),
    step=st.integers(0, 10_000),
    seed=seeds,
    shuffle=st.booleans(),
)
def test_any_split_over_replicas_and_micro_batches_sees_the_same_global_batch(
    store: TokenStore,
    data: st.DataObject,
    sequences: int,
    step: int,
    seed: int,
    shuffle: bool,
) -> None:
    samples = Samples(store, 8, sequences, seed, shuffle)
    cuts = data.draw(st.sets(st.integers(0, sequences)))
    bounds = sorted(cuts | {0, sequences})
    parts = [samples.batch(step, low, high - low) for low, high in pairwise(bounds)]
    whole = samples.batch(step, 0, sequences)
    np.testing.assert_array_equal(np.concatenate([p.tokens for p in parts]), whole.tokens)
    np.testing.assert_array_equal(np.concatenate([p.targets for p in parts]), whole.targets)


def test_a_run_that_resumes_sees_what_it_would_have_seen(tmp_path: Path) -> None:
    first = Samples(made_store(tmp_path / "s", 401), 8, 6, seed=9)
    seen = [first.batch(step, 0, 6).tokens for step in range(40)]
    again = Samples(made_store(tmp_path / "s", 401), 8, 6, seed=9)
    for step in reversed(range(17, 40)):
        np.testing.assert_array_equal(again.batch(step, 0, 6).tokens, seen[step])


def test_too_few_tokens_for_a_sample_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"10 tokens are too few for one sample of 10 .*\n.*<= 9"):
        Samples(made_store(tmp_path / "s", 10), 10, 1)


@pytest.mark.parametrize(("step", "first", "count"), [(0, 0, 5), (0, 4, 1), (0, -1, 1), (-1, 0, 1)])
def test_sequences_that_a_step_does_not_have_are_refused(
    tmp_path: Path, step: int, first: int, count: int
) -> None:
    with pytest.raises(SpecError, match="a step has 4"):
        Samples(made_store(tmp_path / "s", 401), 10, 4).batch(step, first, count)


# ---- held-out samples -------------------------------------------------------------------


@given(tokens=st.integers(1, 40), sequences=st.integers(1, 9), length=st.integers(1, 5))
def test_every_held_out_sample_counts_once_however_replicas_divide_the_batches(
    tokens: int, sequences: int, length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = made_store(tmp_path_factory.mktemp("store"), tokens + length)
    held_out = HeldOut(Samples(store, length, sequences, shuffle=False))
    for replicas in (n for n in range(1, sequences + 1) if sequences % n == 0):
        share, seen = sequences // replicas, list[int]()
        for number in range(held_out.batches):
            for offset in range(0, sequences, share):
                batch = held_out.batch(number, offset, share)
                counts = batch.targets[batch.targets != MASKED]
                assert len(counts) == held_out.counted(number, offset, share)
                seen += counts.tolist()
        assert seen == list(range(1, held_out.samples.count * length + 1))
