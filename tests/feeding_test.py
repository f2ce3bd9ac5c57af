"""What `fit` and `predict` are given beside texts and arrays: a user's own data sets and callbacks."""

from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.models.trainer.streaming import MappedBatches
from tests.helpers import (
    LABELS,
    SHALLOW,
    TEXTS,
    Batches,
    crossentropy,
    numpy,
    random_inputs,
    randomise,
    short_error,
    slow_on,
    streams,
)

BATCH = random_inputs(), np.array([0, 1, 2])


def every_stream(batch):
    """Yield this batch in each form that Keras accepts, `tf.data` on TensorFlow among them."""
    yield from streams(batch)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        yield tf.data.Dataset.from_tensors(batch)


class Named(Batches):
    """A data set with names that the package's own batches have, which mean something else here."""

    epoch = "2024"
    next_sentence = next_token = pairs = False

    def to_tf(self):
        raise AssertionError

    def part_of(self):
        raise AssertionError


class Counted(keras.utils.PyDataset):
    """A data set that gives its number of batches as Keras 3 would have it; the number may be None."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return BATCH


AMSGRAD = partial(keras.optimizers.AdamW, amsgrad=True)


@pytest.mark.parametrize(
    "kind",
    [
        keras.optimizers.AdamW,
        *(
            pytest.param(kind, marks=slow_on("tensorflow", "jax"))
            for kind in (
                AMSGRAD,
                kbz.AdamW,
                kbz.Lamb,
                keras.optimizers.Adamax,
                keras.optimizers.Nadam,
                keras.optimizers.Muon,
                keras.optimizers.ScheduleFreeAdamW,
            )
        ),
    ],
)
def test_a_second_run_corrects_moments_of_its_own(kind, tokenizer):
    """Corrected by the number of the second run's updates, the first's moments would be a third of what they are."""
    backbone = {**SHALLOW, "dropout": 0.0, "attention_dropout": 0.0}

    def fresh():
        preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
        model = kbz.BertTextClassifier(kbz.BertBackbone(**backbone), 3, dropout=0.0, preprocessor=preprocessor)
        options = {"bias_correction": True} if kind is kbz.AdamW else {}
        model.compile(kind(kbz.WarmupPolynomialDecay(1e-2), **options))
        return model

    def fit(model):
        keras.utils.set_random_seed(1)
        model.fit(TEXTS, LABELS, batch_size=2, epochs=2, verbose=0)

    first, second = randomise(fresh()), fresh()
    fit(first)
    second.set_weights(first.get_weights())
    fit(first)
    fit(second)
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def accumulating(tokenizer):
    model = kbz.BertTextClassifier(
        kbz.BertBackbone(**{**SHALLOW, "dropout": 0.0, "attention_dropout": 0.0}),
        num_classes=3,
        dropout=0.0,
        preprocessor=kbz.BertPreprocessor(tokenizer, sequence_length=16),
    )
    model.compile(keras.optimizers.SGD(kbz.WarmupPolynomialDecay(0.1, 0.0), gradient_accumulation_steps=2))
    return model


@slow_on("tensorflow", "jax")
def test_an_epoch_that_is_repeated_begins_without_its_gradients(tokenizer, tmp_path):
    """`BackupAndRestore(save_freq=1)` restores those of a batch that comes again."""

    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise InterruptedError

    def fit(model, *callbacks):
        model.fit(TEXTS, LABELS, batch_size=2, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model.get_weights()

    killed, resumed, whole = randomise(accumulating(tokenizer)), accumulating(tokenizer), accumulating(tokenizer)
    whole.set_weights(killed.get_weights())
    with pytest.raises(InterruptedError):
        fit(killed, keras.callbacks.BackupAndRestore(tmp_path, save_freq=1), Killed())
    found = fit(resumed, keras.callbacks.BackupAndRestore(tmp_path, save_freq=1))
    for one, other in zip(found, fit(whole), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_second_run_begins_without_gradients_of_the_first(tokenizer):
    """With Keras' accumulation the last of the first run's three batches would be in the second run's first update."""

    def fit(model):
        model.fit(TEXTS, LABELS, batch_size=2, shuffle=False, verbose=0)

    first, second = randomise(accumulating(tokenizer)), accumulating(tokenizer)
    fit(first)
    second.set_weights(first.get_weights())
    before = first.get_weights()
    fit(first)
    fit(second)
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert any((one != was).any() for one, was in zip(first.get_weights(), before, strict=True))


@slow_on("tensorflow", "jax")
def test_a_run_that_goes_on_keeps_its_moments(classifier):
    """Epochs before `initial_epoch` belong to the same run: two calls train what one does."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 0

    def trained(*calls):
        backbone = kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0)
        model = kbz.BertTextClassifier(backbone, 3, dropout=0.0, preprocessor=classifier.preprocessor)
        randomise(model).compile(keras.optimizers.AdamW(kbz.WarmupPolynomialDecay(1e-2)))
        for options in calls:
            keras.utils.set_random_seed(1)
            model.fit(TEXTS, LABELS, batch_size=2, epochs=2, verbose=0, **options)
        return model.get_weights()

    for whole, parts in zip(trained({}), trained({"callbacks": [Stop()]}, {"initial_epoch": 1}), strict=True):
        np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_a_users_data_set_is_not_taken_for_ours(classifier):
    data = Named(BATCH, BATCH)
    assert len(classifier.fit(data, epochs=2, steps_per_epoch=1, validation_data=data, verbose=0).epoch) == 2
    assert data.epoch == "2024"
    expected = classifier.predict(BATCH[0], verbose=0)
    np.testing.assert_allclose(classifier.predict(data, verbose=0), np.concatenate([expected] * 2), atol=1e-6)


def test_a_users_data_set_is_not_taken_for_ours_in_pretraining():
    """Its ids are checked; those of `PretrainingBatches` have been checked already."""
    model = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW))
    positions = np.zeros((3, 2), "int32")
    targets, weights = {"mlm": positions}, {"mlm": np.ones((3, 2), "float32")}
    inputs = {**random_inputs(), "mask_positions": positions}
    found = model.evaluate(Named((inputs, targets, weights)), verbose=0, return_dict=True)
    logits = model.predict(Named((inputs,)), verbose=0)["mlm"]
    assert found["loss"] == pytest.approx(crossentropy(logits, positions).mean(), rel=1e-5)
    with pytest.raises(ValueError, match="`token_ids` must be in"):
        model.fit(Named(({**inputs, **random_inputs(vocabulary_size=400)}, targets, weights)), verbose=0)


def test_a_data_set_may_give_its_number_of_batches(classifier):
    classifier.fit(Counted(3), epochs=2, verbose=0)
    assert classifier.optimizer.learning_rate == 0.0
    with pytest.raises(ValueError, match="`steps_per_epoch` must be given if the data set has no known length"):
        classifier.fit(Counted(None), verbose=0)


@pytest.mark.parametrize("batch", [BATCH[0], BATCH[:1], (BATCH[0], None)], ids=["inputs", "alone", "None"])
def test_what_is_trained_on_has_targets(batch, classifier):
    """Its lack is found before anything is trained, also in what validates; `predict` needs none."""

    def validate(data, **options):
        classifier.fit(Batches(BATCH), validation_data=data, **options)

    for run in (classifier.fit, classifier.evaluate, validate):
        for data in every_stream(batch):
            with short_error("`y` must be part of the data set, unless you compile with loss=None."):
                run(data, verbose=0)
    assert classifier.optimizer.iterations == 0
    with short_error("`y` must be part of the data set"):
        classifier.evaluate(classifier.batches(TEXTS), verbose=0)
    assert [len(classifier.predict(data, steps=1, verbose=0)) for data in every_stream(batch)] == [3] * len(
        list(every_stream(batch))
    )


def test_what_is_pretrained_on_has_targets():
    model = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW))
    inputs = {**random_inputs(), "mask_positions": np.zeros((3, 2), "int32")}
    data = streams((inputs, None))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        data += [tf.data.Dataset.from_tensors(batch) for batch in (inputs, (inputs,), (inputs, None))]
    for batches in data:
        with short_error("`y` must be part of the data set"):
            model.evaluate(batches, verbose=0)


def test_a_mask_may_be_bool(classifier):
    inputs = random_inputs()
    of_bools = {**inputs, "segment_ids": inputs["segment_ids"] > 0, "padding_mask": inputs["padding_mask"] > 0}
    expected = classifier.predict(inputs, verbose=0)
    data = [of_bools, *streams((of_bools,))]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        data.append(tf.data.Dataset.from_tensors(of_bools))
    found = [classifier.predict(each, steps=1, verbose=0) for each in data]
    for logits in (*found, numpy(classifier.predict_on_batch(of_bools))):
        np.testing.assert_allclose(logits, expected, atol=1e-6)
    with short_error("`token_ids` must hold integers. Received: token_ids.dtype=bool"):
        classifier.predict({**inputs, "token_ids": inputs["padding_mask"] > 0}, verbose=0)


def test_what_is_no_data_is_refused_by_name(classifier):
    model = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW))
    for x in (object(), iter([BATCH]), keras.ops.ones((3, 9)), {1}):
        for run in (classifier.fit, classifier.evaluate, classifier.predict):
            with short_error("`x` must be a list of strings", f"Received: x of type {type(x).__name__}"):
                run(x, verbose=0)
        with short_error("`x` must be PretrainingBatches", f"Received: x of type {type(x).__name__}"):
            model.fit(x, verbose=0)
    for run in (classifier.fit, classifier.evaluate, classifier.predict, model.fit):
        for x in streams():
            with short_error("`x` must hold at least one batch. Received: an empty"):
                run(x, verbose=0)
    four = *BATCH, np.ones(3), np.ones(3)
    for run in (classifier.fit, classifier.evaluate):
        for x in every_stream(four):
            with short_error("(inputs, targets) or (inputs, targets, weights). Received: a batch of 4 parts"):
                run(x, verbose=0)


@slow_on("tensorflow", "jax")
def test_numbers_may_be_numpys(classifier):
    one, two = np.uint8(1), np.int64(2)
    sizes = {"validation_steps": one, "validation_batch_size": two, "validation_split": np.float32(1 / 3)}
    classifier.fit(TEXTS, LABELS, two, epochs=one, **sizes, verbose=0)
    assert classifier.optimizer.iterations == 2
    assert classifier.optimizer.learning_rate == 0.0
    scores = classifier.evaluate(TEXTS, LABELS, two, steps=one, verbose=0)
    np.testing.assert_allclose(scores, classifier.evaluate(TEXTS[:2], LABELS[:2], verbose=0), atol=1e-6)
    expected = classifier.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(classifier.predict(TEXTS, two, verbose=0), expected, atol=1e-6)


@pytest.fixture
def one_step():
    """Keras takes one batch of any data."""
    keras.config.set_max_steps_per_epoch(1)
    yield
    keras.config.set_max_steps_per_epoch(None)


@pytest.mark.filterwarnings("ignore:Limiting steps_per_epoch to 1")
def test_a_limit_of_steps_leaves_the_first_rows(classifier, one_step):
    expected = numpy(classifier(classifier.preprocessor(TEXTS[:2])))
    for steps in (None, 1, 2):
        found = classifier.predict(TEXTS, 2, steps=steps, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    loss = crossentropy(expected, np.array(LABELS[:2])).mean()
    assert classifier.evaluate(TEXTS, LABELS, 2, verbose=0)[0] == pytest.approx(loss, rel=1e-5)
    assert classifier.predict(TEXTS, verbose=0).shape == (6, 3)


class Stop(keras.callbacks.Callback):
    def on_predict_batch_end(self, batch, logs=None):
        self.model.stop_predicting = True


def test_a_prediction_in_order_needs_all_batches(classifier):
    with short_error("`predict` must take all batches", "Received: an end after 2 of 6 rows"):
        classifier.predict(TEXTS, 2, callbacks=[Stop()], verbose=0)
    assert classifier.predict(TEXTS, 6, callbacks=[Stop()], verbose=0).shape == (6, 3)


class Log(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, sorted(logs)))


@slow_on("tensorflow", "jax")
def test_fit_takes_a_callback_list(classifier):
    log = Log()
    callbacks = keras.callbacks.CallbackList([log], add_history=True, model=classifier)
    before = list(callbacks.callbacks)
    options = {"epochs": 3, "initial_epoch": 1, "validation_data": (TEXTS, LABELS), "verbose": 0}
    history = classifier.fit(TEXTS, LABELS, callbacks=callbacks, **options)
    assert log.seen == [(epoch, ["accuracy", "loss", "val_accuracy", "val_loss"]) for epoch in (1, 2)]
    assert history.epoch == [1, 2]
    assert callbacks.callbacks == before


@slow_on("tensorflow", "jax")
def test_what_stands_beside_texts_to_be_predicted(tokenizer):
    """Names of classes are left aside; a second text is not."""
    tf = pytest.importorskip("tensorflow")
    preprocessor = kbz.BertPreprocessor(tokenizer, 16)
    model = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), class_names=["no", "yes"], preprocessor=preprocessor)
    randomise(model)
    expected = model.predict(TEXTS, verbose=0)
    for beside in (["no", "yes"] * 3, LABELS):
        stream = tf.data.Dataset.from_tensor_slices((TEXTS, beside)).batch(6)
        np.testing.assert_allclose(model.predict(stream, verbose=0), expected, atol=1e-5)
    second = TEXTS[::-1]
    pairs = tf.data.Dataset.from_tensors(((TEXTS, second),))
    np.testing.assert_allclose(model.predict(pairs, verbose=0), model.predict((TEXTS, second), verbose=0), atol=1e-5)
    with short_error("`x` must be a data set of ((first, second),) to stream pairs"):
        model.predict(tf.data.Dataset.from_tensors((TEXTS, second)), verbose=0)


@slow_on("tensorflow", "jax")
def test_a_data_set_hears_of_its_epochs(classifier):
    heard = []

    class Own(Batches):
        def on_epoch_begin(self):
            heard.append("begin")

        def on_epoch_end(self):
            heard.append("end")

    classifier.fit(Own((random_inputs(), np.array([0, 1, 2]))), epochs=2, verbose=0)
    assert min(heard.count("begin"), heard.count("end")) >= 2


def test_what_maps_a_data_set_works_as_it():
    data = Batches((random_inputs(), np.array([0, 1, 2])))
    data.workers, data.max_queue_size = 3, 7
    mapped = MappedBatches(data, lambda batch: batch)
    assert (mapped.workers, mapped.use_multiprocessing, mapped.max_queue_size) == (3, False, 7)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_data_set_is_shuffled_as_by_keras(shuffle, classifier):
    """As `fit`'s default says, from Keras' seed; batches read before the epochs do not count."""
    keras.utils.set_random_seed(0)
    read = []

    class Noted(Counted):
        def __getitem__(self, index):
            read.append(index)
            return BATCH

    classifier.fit(Noted(8), epochs=2, shuffle=shuffle, verbose=0)
    epochs = read[-16:-8], read[-8:]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len({(0, 1, 2, 3, 4, 5, 6, 7), *map(tuple, epochs)}) == (3 if shuffle else 1)
