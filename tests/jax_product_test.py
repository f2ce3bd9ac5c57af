"""JAX's products of bfloat16 on a CPU: values, gradients, and where they are used."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers import passes
from keras_bert_zoo.layers.passes import step_of_this_process
from tests.helpers import TINY, assert_rounded_once, random_inputs, randomise

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="They are JAX's products.")
RNG = np.random.default_rng(8)
SHAPES = [
    ((5, 16), (16, 6)),
    ((4, 16), (16, 6)),
    ((0, 16), (16, 6)),
    ((2, 3, 16), (16, 6)),
    ((2, 3, 4, 16), (2, 3, 16, 6)),
    ((2, 3, 5, 16), (2, 3, 16, 6)),
    ((0, 3, 4, 16), (0, 3, 16, 6)),
    ((3, 1, 16), (3, 16, 6)),
]


@pytest.fixture(autouse=True)
def has_bfloat16(monkeypatch):
    """The products run on every processor, but are only faster on some."""
    from keras_bert_zoo.layers import jax_product

    monkeypatch.setattr(jax_product, "_HAS_BFLOAT16", True)
    with step_of_this_process("training", compiled=True):
        yield


def bfloat16(*shape):
    import jax.numpy as jnp

    return jnp.asarray(RNG.normal(size=shape), "bfloat16")


def wide(tensor):
    return np.asarray(tensor).astype("float64")


def swapped(array):
    return np.swapaxes(array, -1, -2)


def products(function, *arguments):
    """Return the dtypes of factors and product of each matmul in a function and in the functions that it calls."""
    import jax

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield *(str(factor.aval.dtype) for factor in equation.invars), str(equation.outvars[0].aval.dtype)
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns")):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from walk(getattr(inner, "jaxpr", inner))

    return list(walk(jax.make_jaxpr(function)(*arguments).jaxpr))


@pytest.mark.parametrize("left, right", SHAPES)
def test_it_is_rounded_once_as_are_its_gradients(left, right):
    import jax

    from keras_bert_zoo.layers.jax_product import product, takes

    left, right = bfloat16(*left), bfloat16(*right)
    assert takes(left, right)
    output, pull = jax.vjp(product, left, right)
    outer = bfloat16(*output.shape)
    of_left, of_right = pull(outer)
    assert [each.dtype for each in (output, of_left, of_right)] == ["bfloat16"] * 3
    assert (of_left.shape, of_right.shape) == (left.shape, right.shape)
    assert_rounded_once(wide(output), wide(left) @ wide(right))
    assert_rounded_once(wide(of_left), wide(outer) @ swapped(wide(right)))
    exact = swapped(wide(left)) @ wide(outer)
    assert_rounded_once(wide(of_right), exact if right.ndim == left.ndim else exact.reshape(-1, *right.shape).sum(0))


def test_what_is_not_taken(monkeypatch):
    from keras_bert_zoo.layers import jax_product

    left, right = bfloat16(2, 3, 16), bfloat16(2, 16, 6)
    assert jax_product.takes(left, right)
    assert not jax_product.takes(left.astype("float32"), right)
    assert not jax_product.takes(left, right.astype("float32"))
    assert not jax_product.takes(left, bfloat16(1, 16, 6))  # Which would be broadcast.
    for module, name, value in (
        (jax_product, "on_cpu", lambda tensor: False),
        (jax_product, "_HAS_BFLOAT16", False),
        (jax_product, "is_step", lambda: False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert not jax_product.takes(left, right)


def test_outside_of_steps_there_are_forward_derivatives():
    import jax

    token = passes._step.set("")
    layer = randomise(kbz.layers.SelfAttention(8, 2, dtype="mixed_bfloat16"))
    hidden = bfloat16(2, 5, 8)
    _, change = jax.jvp(layer, (hidden,), (hidden,))
    passes._step.reset(token)
    small = 2.0**-6
    expected = (wide(layer(hidden * (1 + small))) - wide(layer(hidden * (1 - small)))) / (2 * small)
    np.testing.assert_allclose(wide(change), expected, atol=0.3 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["classifier", "masked tokens"])
def test_a_model_s_products_are_all_of_this_kind(kind):
    """Those of bfloat16 have sums in float32, also in the gradient; a linear head is float32 itself.

    Masked tokens are selected by two products with ones and zeros, which are exact.
    """
    import jax

    backbone = kbz.BertBackbone(**TINY, dtype="mixed_bfloat16")
    inputs = random_inputs(3)
    if kind == "classifier":
        model = kbz.BertTextClassifier(backbone, num_classes=2)
    else:
        model, inputs = kbz.BertMaskedLM(backbone), {**inputs, "mask_positions": np.array([[1, 2]] * 3, "int32")}
    randomise(model)
    weights, others = (
        [each.value for each in model.trainable_variables],
        [each.value for each in model.non_trainable_variables],
    )

    def loss(weights, training):
        outputs, _ = model.stateless_call(weights, others, inputs, training=training)
        return sum(output.sum() for output in jax.tree.leaves(outputs))

    half, single, selections = "bfloat16", "float32", []
    for function in (lambda weights: loss(weights, False), jax.grad(lambda weights: loss(weights, True))):
        found = products(function, weights)
        assert found.count((half, half, single)) >= 6 * TINY["num_layers"] - 4
        assert set(found) <= {(half, half, half), (half, half, single), (single, single, single)}
        selections.append(found.count((half, half, half)))
    assert selections == {"classifier": [0, 0], "masked tokens": [2, 4]}[kind]


@pytest.mark.parametrize("method", ["predict", "evaluate", "fit"])
def test_steps_take_it_and_calls_do_not(method, monkeypatch):
    from keras_bert_zoo.layers import jax_product

    taken, product = [], jax_product.product
    monkeypatch.setattr(jax_product, "product", lambda *given: taken.append(given) or product(*given))
    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), num_classes=2))
    token = passes._step.set("")
    model(random_inputs(3))
    assert not taken
    data = [random_inputs(3)] if method == "predict" else [random_inputs(3), np.array([0, 1, 1])]
    getattr(model, method)(*data, verbose=0)
    passes._step.reset(token)
    assert len(taken) >= 6 * TINY["num_layers"] - 4


def test_an_update_is_that_of_float32():
    updated = []
    for dtype in ("mixed_bfloat16", "float32"):
        backbone = kbz.BertBackbone(**TINY, dtype=dtype, dropout=0.0, attention_dropout=0.0)
        model = randomise(kbz.BertTextClassifier(backbone, num_classes=2, dropout=0.0))
        model.compile(keras.optimizers.SGD(0.1))
        before = model.get_weights()
        model.fit(random_inputs(3), np.array([0, 1, 1]), verbose=0)
        updated.append([new - old for new, old in zip(model.get_weights(), before, strict=True)])
    for half, single in zip(*updated, strict=True):
        np.testing.assert_allclose(half, single, atol=max(0.1 * np.abs(single).max(), 1e-4))
