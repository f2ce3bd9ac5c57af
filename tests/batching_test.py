"""Packing and length-sorted batches."""

import gc
import itertools
import weakref

import keras
import numpy as np
import pytest

from keras_bert_zoo.text.batching import LengthSortedBatches, padded_length, static_lengths
from keras_bert_zoo.text.packing import PackedTexts, PaddedArrays, pack_texts, truncated_lengths
from tests.helpers import TEXTS, random_inputs


def truncate_by_popping(first, second, budget):
    """google-research/bert, run_classifier.py: take a token from the longer one until both fit."""
    while first + second > budget:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_truncation_is_the_originals():
    for first, second, budget in itertools.product(range(14), range(14), range(1, 16)):
        kept = truncated_lengths(np.array([first]), np.array([second]), budget)
        assert tuple(int(k[0]) for k in kept) == truncate_by_popping(first, second, budget)


@pytest.mark.parametrize("together", [1, 10_000])
def test_packing_by_hand(tokenizer, monkeypatch, together):
    monkeypatch.setattr("keras_bert_zoo.text.packing._LAID_TOGETHER", together)
    packed = pack_texts(tokenizer, ["a good film", "bad"], ["it is fine", "so"], sequence_length=8)
    batch = packed.take(np.array([1, 0]), 9)
    np.testing.assert_array_equal(batch["token_ids"], [[2, 6, 3, 13, 3, 0, 0, 0, 0], [2, 5, 7, 8, 3, 18, 19, 3, 0]])
    np.testing.assert_array_equal(batch["segment_ids"], [[0, 0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 0]])
    np.testing.assert_array_equal(batch["padding_mask"], [[1, 1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 0]])
    assert {array.dtype for array in batch.values()} == {np.dtype("int32")}


def test_padded_arrays_lose_trailing_padding_only():
    arrays = {name: np.pad(array, ((0, 0), (0, 4))) for name, array in random_inputs(4).items()}
    examples = PaddedArrays(arrays)
    np.testing.assert_array_equal(examples.lengths, arrays["padding_mask"].sum(1))
    for length in (9, 13, 16):
        batch = examples.take(np.array([2, 0]), length)
        for name, array in arrays.items():
            expected = np.pad(array[[2, 0]], ((0, 0), (0, 16 - array.shape[1])))[:, :length]
            np.testing.assert_array_equal(batch[name], expected)


@pytest.mark.parametrize(
    "mask, lengths",
    [
        ([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], [4, 0, 5]),
        ([[[1, 0, 0], [0, 1, 0]], [[0, 0, 0], [0, 0, 0]]], [2, 0]),  # The longest of an example's choices.
    ],
)
def test_a_length_is_up_to_the_last_token(mask, lengths):
    assert PaddedArrays({"padding_mask": np.array(mask)}).lengths.tolist() == lengths


def some_texts(count, seed=0):
    lengths = np.random.default_rng(seed).integers(2, 60, count)
    return PackedTexts(np.repeat(np.arange(count), lengths).astype("int32"), lengths, lengths, 0)


def numbers_in(batches):
    """Return the examples of each batch: `some_texts` gives each token the number of its example."""
    return [inputs["token_ids"][:, 0].tolist() for inputs, *_ in batches]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Elsewhere Keras takes the batches themselves.")
def test_tensorflow_is_given_the_same_batches():
    """Epochs follow one another without a generator, which would set glibc for the whole process."""
    import tensorflow as tf

    def batches():
        return LengthSortedBatches(PaddedArrays(random_inputs(7)), np.arange(7), batch_size=2, shuffle_seed=0)

    same, mine, orders = batches(), batches(), set()
    dataset = mine.to_tf()
    for epoch in range(3):
        same.epoch = epoch
        assert mine.epoch == epoch
        iterator = dataset.as_numpy_iterator()
        given = [next(iterator) for _ in range(len(dataset))]
        assert mine.epoch == epoch + 1  # Already, so as not to overwrite what `fit` sets when it begins the next one.
        for (inputs, targets), (own_inputs, own_targets) in zip(given, same, strict=True):
            np.testing.assert_array_equal(targets, own_targets)
            for name, array in own_inputs.items():
                np.testing.assert_array_equal(inputs[name], array)
        orders.add(tuple(np.concatenate([targets for _, targets in given])))
    assert len(orders) > 1
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1, strip_device_assignment=True
    ).numpy()
    assert b"RangeDataset" in graph
    assert b"GeneratorDataset" not in graph


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Elsewhere Keras takes the batches themselves.")
def test_tensorflow_does_not_keep_the_examples():
    batches = LengthSortedBatches(PaddedArrays(random_inputs(4)), batch_size=2)
    dataset, kept = batches.to_tf(), weakref.ref(batches)
    del batches
    assert len(list(dataset.take(2))) == 2
    del dataset
    gc.collect()
    assert kept() is None


def test_every_example_once_an_epoch_anew_and_repeatable():
    batches = LengthSortedBatches(some_texts(999), np.arange(999), batch_size=8, shuffle_seed=5)
    assert len(batches) == 125
    seen = []
    for epoch in range(3):
        batches.epoch = epoch
        seen.append(numbers_in(batches))
        assert sorted(itertools.chain(*seen[-1])) == list(range(999))
        assert [len(numbers) for numbers in seen[-1]] == [8] * 124 + [7]
    assert seen[0] != seen[1] != seen[2]
    batches.epoch = 1
    assert numbers_in(batches) == seen[1]
    assert numbers_in(batches) == seen[2]  # Whoever takes them in a loop gets another order in each.
    assert numbers_in(LengthSortedBatches(some_texts(999), batch_size=8, shuffle_seed=5)) == seen[0]
    assert numbers_in(LengthSortedBatches(some_texts(999), batch_size=8, shuffle_seed=6)) != seen[0]


def test_targets_and_weights_go_with_their_examples():
    batches = LengthSortedBatches(some_texts(50), np.arange(50) * 2, np.arange(50) / 7, batch_size=8, shuffle_seed=1)
    for inputs, targets, weights in batches:
        np.testing.assert_array_equal(targets, inputs["token_ids"][:, 0] * 2)
        np.testing.assert_allclose(weights, inputs["token_ids"][:, 0] / 7, rtol=1e-6)


def test_sorting_saves_padding():
    def padding_share(batches):
        sizes = [(inputs["padding_mask"].sum(), inputs["padding_mask"].size) for inputs, *_ in batches]
        real, padded = np.sum(sizes, axis=0)
        return 1 - real / padded

    examples = some_texts(2000)
    in_order = LengthSortedBatches(examples, batch_size=16, training=True)
    shuffled = LengthSortedBatches(examples, batch_size=16, shuffle_seed=0)
    assert padding_share(in_order) > 0.4
    assert padding_share(shuffled) < 0.04
    assert padding_share(LengthSortedBatches(examples, batch_size=16)) < 0.02


def test_few_shapes_where_each_is_compiled():
    lengths = static_lengths(40)
    assert lengths == (16, 32, 40)
    assert [padded_length(n, lengths) for n in (1, 16, 17, 33, 40)] == [16, 16, 32, 40, 40]
    assert padded_length(7, ()) == 7
    batches = LengthSortedBatches(some_texts(999), batch_size=8, shuffle_seed=0, static_lengths=static_lengths(64))
    assert {inputs["token_ids"].shape for inputs, *_ in batches if len(inputs["token_ids"]) == 8} == {
        (8, length) for length in (16, 32, 48, 64)
    }


def shapes_of(lengths, **options):
    lengths = np.array(lengths)
    numbers = np.repeat(np.arange(len(lengths)), lengths).astype("int32")
    batches = LengthSortedBatches(PackedTexts(numbers, lengths, lengths, 0), batch_size=2, **options)
    assert len(batches) == len(list(batches))
    return [inputs["token_ids"].shape for (inputs,) in batches]


def test_short_examples_have_larger_batches():
    """They grow by twos to at most ten tokens; where shapes are compiled, the padded length counts."""
    lengths = [1, 2, 2, 2, 3, 3, 4, 5, 2, 1, 1, 1, 1]
    assert shapes_of(lengths, most_tokens=10) == [(2, 5), (2, 3), (4, 2), (4, 1), (1, 1)]
    assert shapes_of(lengths, most_tokens=10, static_lengths=(2, 5)) == [(2, 5), (2, 5), (4, 2), (4, 2), (1, 2)]
    assert shapes_of(lengths) == [(2, 5), (2, 3), (2, 2), (2, 2), (2, 1), (2, 1), (1, 1)]
    assert shapes_of([4, 4, 3, 3, 2, 2, 2, 2], most_tokens=32) == [(4, 4), (4, 2)]  # Not two beside four.


@pytest.mark.parametrize(
    "size, most, few, fed",
    [
        (8, None, False, 32),
        (5, None, False, 48),
        (40, None, False, 32),
        (5, 600, False, 40),
        (20, None, True, 36),
        (11, None, True, 32),
        (40, None, True, 32),
        (7, 600, True, 36),
    ],
)
def test_predictions_come_back_in_order(size, most, few, fed):
    rows, options = np.arange(30), {"multiple_of": 4, "most_tokens": most, "few_sizes": few}
    batches = LengthSortedBatches(some_texts(50), batch_size=size, rows=rows, **options)
    outputs = np.concatenate([inputs["token_ids"][:, :1] for inputs, *_ in batches])
    assert len(outputs) == fed
    np.testing.assert_array_equal(batches.restore_order(outputs)[:, 0], rows)


def test_few_sizes_of_the_last_batch():
    """They are powers of two, or the batch size, which full batches have anyway."""
    sizes = {}
    for count in range(1, 26):
        batches = LengthSortedBatches(some_texts(count), batch_size=12, few_sizes=True)
        sizes[count] = [len(inputs["token_ids"]) for (inputs,) in batches]
    for counts, expected in [([1], 1), ([2], 2), ([3, 4], 4), (range(5, 9), 8), (range(9, 13), 12)]:
        for count in counts:
            assert (sizes[count], sizes[12 + count]) == ([expected], [12, expected])


@pytest.mark.parametrize("size, parts, fed", [(7, 1, 7), (7, 4, 8), (8, 4, 8), (3, 8, 8), (64, 8, 64)])
def test_one_shape(size, parts, fed):
    """All batches are as long as the longest of the rows, and as large as full ones, for a TPU."""
    texts = some_texts(40)
    short = np.flatnonzero(texts.lengths <= 30)
    options = {"batch_size": size, "multiple_of": parts, "few_sizes": True, "most_tokens": 2048, "one_shape": True}
    for rows, length in ((np.arange(40), 64), (short, 32)):
        batches = LengthSortedBatches(texts, np.arange(40), rows=rows, static_lengths=(16, 32, 64, 128), **options)
        assert {inputs["token_ids"].shape for inputs, *_ in batches} == {(fed, length)}
        assert len(batches) == -(-len(rows) // size)
        weights = np.concatenate([weights[0] if weights else np.ones(fed) for _, _, *weights in batches])
        assert (weights > 0).sum() == len(rows)
        assert weights.sum() == pytest.approx(len(weights))
        outputs = np.concatenate([targets for _, targets, *_ in batches])
        np.testing.assert_array_equal(batches.restore_order(outputs), rows)


def test_copies_leave_the_mean_of_a_batch_as_it_was():
    ((_, targets, weights),) = LengthSortedBatches(some_texts(5), np.arange(5), multiple_of=4, training=True)
    assert len(targets) == 8
    assert (weights * targets).sum() / 8 == pytest.approx(np.arange(5).mean())


@pytest.mark.parametrize("count, size, parts", [(10, 4, 4), (9, 8, 2), (3, 8, 4), (16, 8, 4), (7, 3, 2)])
def test_batches_are_filled_for_replicas_with_weightless_copies(count, size, parts):
    batches = LengthSortedBatches(some_texts(count), np.arange(count), batch_size=size, multiple_of=parts)
    real, fed, total = 0, 0, 0.0
    for inputs, targets, *weights in batches:
        assert len(targets) % parts == 0
        np.testing.assert_array_equal(inputs["token_ids"][:, 0], targets)
        weight = weights[0] if weights else np.ones(len(targets))
        real, fed, total = real + (weight > 0).sum(), fed + len(targets), total + weight.sum()
    assert (real, total) == (count, pytest.approx(fed))  # Keras divides by this.


def test_pack_needs_no_second_text(tokenizer):
    packed = pack_texts(tokenizer, TEXTS, None, sequence_length=6)
    assert packed.lengths.tolist() == [5, 3, 6, 5, 5, 4]
    batch = packed.take(np.arange(6), 6)
    assert (batch["segment_ids"] == 0).all()
    assert batch["token_ids"][2].tolist() == [2, 24, 25, 23, 10, 3]


def test_the_last_batch_has_one_shape_in_each_epoch():
    """Otherwise a program would be compiled for it anew."""
    texts, shapes = some_texts(13), set()
    batches = LengthSortedBatches(texts, batch_size=8, shuffle_seed=0, static_lengths=static_lengths(64))
    for batches.epoch in range(20):
        shapes.add(list(batches)[-1][0]["token_ids"].shape)
    assert shapes == {(5, 64)}


def test_texts_are_sorted_some_at_a_time():
    """Sorted by the hundred, a quarter of all, neighbours are some four tokens apart; sorted all together, one."""
    lengths = np.arange(1, 401)
    numbers = np.repeat(np.arange(400), lengths).astype("int32")
    batches = LengthSortedBatches(PackedTexts(numbers, lengths, lengths, 0), batch_size=2, shuffle_seed=0)
    apart = [np.ptp(inputs["padding_mask"].sum(1)) for (inputs,) in batches]
    assert 2 < np.mean(apart) < 8


def test_batches_come_in_any_order_of_length():
    batches = LengthSortedBatches(some_texts(2000), batch_size=16, shuffle_seed=0)
    longest = [inputs["token_ids"].shape[1] for (inputs,) in batches]
    assert 0.3 < np.mean(np.diff(longest) > 0) < 0.7


def test_without_a_shuffle_training_has_the_order_given_and_evaluation_that_of_lengths():
    lengths = np.array([3, 9, 4, 2])
    numbers = np.repeat(np.arange(4, dtype="int32"), lengths)
    for training, order in ((True, [[0, 1], [2, 3]]), (False, [[1, 2], [0, 3]])):
        batches = LengthSortedBatches(PackedTexts(numbers, lengths, lengths, 0), batch_size=2, training=training)
        assert [inputs["token_ids"][:, 0].tolist() for (inputs,) in batches] == order


def test_the_order_of_an_epoch_holds_when_it_begins():
    batches, same = (LengthSortedBatches(some_texts(99), batch_size=8, shuffle_seed=5) for _ in range(2))
    batches.epoch = same.epoch = 3
    expected = [inputs["token_ids"][:, 0].tolist() for (inputs,) in same]
    batches.on_epoch_begin()
    assert [batches[i][0]["token_ids"][:, 0].tolist() for i in (4, 2)] == [expected[i] for i in (4, 2)]
