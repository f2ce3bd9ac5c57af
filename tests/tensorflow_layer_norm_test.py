"""LayerNorm as one operation of TensorFlow: its values, where it is used, and where it must not be."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers.layer_norm import LayerNormalization
from keras_bert_zoo.layers.passes import step_of_this_process
from tests.helpers import TINY, random_inputs, randomise
from tests.helpers import tensorflow_operations as operations

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Elsewhere it is one operation.")
OPERATION = "_MklLayerNorm"
NORMS = 2 * TINY["num_layers"] + 1
IDS = np.ones((2, 6), "int32")
ARRAYS = {"token_ids": IDS, "segment_ids": IDS, "padding_mask": IDS}


@pytest.fixture(autouse=True)
def available():
    from keras_bert_zoo.layers import tensorflow_layer_norm

    if not tensorflow_layer_norm._is_known():
        pytest.skip("This TensorFlow is built without oneDNN.")


def norm(shape, epsilon, dtype="float32"):
    layer = LayerNormalization(epsilon=epsilon, dtype=dtype)
    layer.build(shape)
    return randomise(layer)


def normalised(x, epsilon):
    """Return each row minus its mean, divided by its deviation; and the deviation."""
    deviation = np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return (x - x.mean(-1, keepdims=True)) / deviation, deviation


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8)])
@pytest.mark.parametrize("epsilon", [1e-12, 0.5])
@pytest.mark.parametrize("dtype, close", [("float32", 1e-6), ("mixed_bfloat16", 0.02)])
def test_it_is_the_papers(shape, epsilon, dtype, close):
    import tensorflow as tf

    layer = norm(shape, epsilon, dtype)
    function = tf.function(lambda inputs: layer(inputs))
    inputs = np.random.default_rng(1).normal(3, 0.5, shape).astype("float32")
    with step_of_this_process("outputs", compiled=False):
        assert operations(function, inputs).count(OPERATION) == 1
        output = function(inputs)
    inputs = inputs.astype("float64")
    gamma, beta = (np.asarray(weight) for weight in (layer.gamma, layer.beta))
    expected = normalised(inputs, epsilon)[0] * gamma + beta
    assert output.dtype == layer.compute_dtype
    np.testing.assert_allclose(tf.cast(output, "float32"), expected, atol=close)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_prediction_and_evaluation_have_it_and_the_same_outputs(dtype):
    import tensorflow as tf

    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype=dtype), num_classes=2))
    batch = {name: tf.constant(array) for name, array in ARRAYS.items()}
    step = tf.function(lambda inputs: model.predict_step((inputs,)))
    assert operations(step, batch).count(OPERATION) == NORMS
    labels = tf.constant([0, 1])
    assert operations(tf.function(lambda *batch: model.test_step(batch)), batch, labels).count(OPERATION) == NORMS
    spelled = np.asarray(model(ARRAYS))
    np.testing.assert_allclose(model.predict(ARRAYS, verbose=0), spelled, atol=1e-5 if dtype == "float32" else 0.05)


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8)])
@pytest.mark.parametrize("epsilon", [1e-12, 0.5])
@pytest.mark.parametrize("dtype, close", [("float32", 1e-5), ("mixed_bfloat16", 0.05)])
def test_its_gradients_are_those_of_the_jacobian(shape, epsilon, dtype, close):
    """With s the deviation and n what is normalised, dn_i / dx_j is (1[i = j] - 1 / dim - n_i n_j / dim) / s."""
    import tensorflow as tf

    layer = norm(shape, epsilon, dtype)
    rng = np.random.default_rng(1)
    inputs = tf.cast(rng.normal(3, 0.5, shape), layer.compute_dtype)
    outer = tf.cast(rng.normal(size=shape), layer.compute_dtype)

    @tf.function
    def step(inputs, outer):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = layer(inputs)
        return output, *tape.gradient(output, [inputs, layer.gamma.value, layer.beta.value], outer)

    with step_of_this_process("training", compiled=False):
        assert operations(step, inputs, outer).count(OPERATION) == 2
        _, *gradients = step(inputs, outer)
    x, outer = (np.asarray(tf.cast(tensor, "float64")).reshape(-1, 8) for tensor in (inputs, outer))
    normal, deviation = normalised(x, epsilon)
    jacobian = (np.eye(8) - 1 / 8 - normal[:, :, None] * normal[:, None] / 8) / deviation[..., None]
    of_inputs = np.einsum("ri,rij->rj", outer * np.asarray(layer.gamma), jacobian)
    for gradient, expected in zip(gradients, (of_inputs, (outer * normal).sum(0), outer.sum(0)), strict=True):
        actual = np.asarray(tf.cast(gradient, "float64")).reshape(expected.shape)
        np.testing.assert_allclose(actual, expected, atol=close * max(1, np.abs(expected).max()))


def test_a_function_between_tape_and_layer_has_the_same_gradients():
    import tensorflow as tf

    layer = norm((3, 8), 0.1)
    inputs, outer = np.random.default_rng(2).normal(size=(2, 3, 8)).astype("float32")
    weights = [layer.gamma.value, layer.beta.value]

    def gradients(call):
        @tf.function
        def step(inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = call(inputs)
            return tape.gradient(output, [inputs, *weights], outer)

        with step_of_this_process("training", compiled=False):
            return step(tf.constant(inputs))

    for within, plain in zip(gradients(tf.function(lambda x: layer(x))), gradients(layer), strict=True):
        assert np.abs(plain).max() > 0.1
        np.testing.assert_allclose(within, plain, atol=1e-6)


def test_its_gradients_have_gradients():
    import tensorflow as tf

    layer = norm((3, 8), 0.1)
    inputs, outer = np.random.default_rng(2).normal(size=(2, 3, 8)).astype("float32")

    def second(kind):
        @tf.function
        def step(inputs):
            with tf.GradientTape() as outside:
                outside.watch(inputs)
                with tf.GradientTape() as inside:
                    inside.watch(inputs)
                    output = layer(inputs)
                norm = tf.reduce_sum(inside.gradient(output, inputs, outer) ** 2)
            return outside.gradient(norm, inputs)

        with step_of_this_process(kind, compiled=False):
            count = operations(step, inputs).count(OPERATION)
            return step(inputs), count

    (ours, some), (keras_own, none) = second("training"), second("")
    assert some > none == 0
    np.testing.assert_allclose(ours, keras_own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype, close", [("float32", 1e-3), ("mixed_bfloat16", 0.1)])
def test_training_has_it_and_the_same_update(dtype, close):
    """It is the same as in a model that runs eagerly, where LayerNorm is Keras' own."""
    import tensorflow as tf

    updated = []
    for eager in (False, True):
        backbone = kbz.BertBackbone(**TINY, dtype=dtype, dropout=0.0, attention_dropout=0.0)
        model = randomise(kbz.BertTextClassifier(backbone, num_classes=2, dropout=0.0))
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=eager)
        if not eager:
            model.optimizer.build(model.trainable_variables)
            batch = {name: tf.constant(array) for name, array in ARRAYS.items()}
            step = tf.function(lambda *batch, model=model: model.train_step(batch))
            assert operations(step, batch, tf.constant([0, 1])).count(OPERATION) == 2 * NORMS
        before = model.get_weights()
        model.fit(random_inputs(3), np.array([0, 1, 1]), verbose=0)
        updated.append([new - old for new, old in zip(model.get_weights(), before, strict=True)])
    for graph, eager in zip(*updated, strict=True):
        np.testing.assert_allclose(graph, eager, atol=max(close * np.abs(eager).max(), 1e-7))


@pytest.mark.parametrize("where", ["call", "xla training", "xla", "eager"])
def test_elsewhere_it_is_keras(where):
    """A model's own call may be saved, and XLA does not know the operation."""
    import tensorflow as tf

    model = kbz.BertTextClassifier(kbz.BertBackbone(**TINY), num_classes=2)
    batch, labels = {name: tf.constant(array) for name, array in ARRAYS.items()}, tf.constant([0, 1])
    if where == "call":
        assert OPERATION not in operations(tf.function(lambda inputs: model(inputs, training=False)), batch)
    elif where == "xla training":
        model.compile(keras.optimizers.SGD(0.1), loss=model.loss, jit_compile=True)
        model.optimizer.build(model.trainable_variables)
        assert OPERATION not in operations(tf.function(lambda *batch: model.train_step(batch)), batch, labels)
    else:
        model.compile(jit_compile=where == "xla", run_eagerly=where == "eager")
        logits = np.asarray(model(ARRAYS))
        np.testing.assert_allclose(model.predict(ARRAYS, verbose=0), logits, atol=1e-5)
        loss = -tf.nn.log_softmax(logits).numpy()[[0, 1], [0, 1]].mean()
        np.testing.assert_allclose(np.ravel(model.evaluate(ARRAYS, [0, 1], verbose=0))[0], loss, atol=1e-5)


def test_a_loss_that_takes_a_gradient_does_so_in_an_evaluation_too():
    """oneDNN's operations for outputs alone have no gradient that a tape would see."""
    import tensorflow as tf

    class Penalised(kbz.BertTextClassifier):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            gamma = self.backbone.embeddings.layer_norm.gamma.value
            with tf.GradientTape() as tape:
                loss = super().compute_loss(x, y, self(x, training=False), sample_weight, training)
            gradient = tape.gradient(loss, gamma)
            return loss if gradient is None else loss + 100 * tf.reduce_sum(tf.square(gradient))

    model = randomise(Penalised(kbz.BertBackbone(**TINY), num_classes=3))
    inputs, targets = random_inputs(), np.array([0, 1, 2])
    model.compile(keras.optimizers.SGD(0.1), metrics=None)
    plain = kbz.BertTextClassifier.compute_loss(model, inputs, targets, model(inputs, training=False))
    expected = float(model.compute_loss(inputs, targets, training=False))
    assert expected - float(plain) > 0.01
    assert np.ravel(model.evaluate(inputs, targets, verbose=0))[0] == pytest.approx(expected, rel=1e-4)
