"""The optimisers against NumPy, step by step; several devices are in distribution_test.py."""

import functools
import math

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests import optimizer_oracles as oracles
from tests.helpers import TINY, numpy, random_inputs

OPTIMIZERS = [(kbz.AdamW, oracles.adamw), (kbz.Lamb, oracles.lamb)]
STEPS = 6
SHAPES = {"dense/kernel": (3, 4), "qkv/kernel": (2, 6), "norm/bias": (4,), "norm/gamma": (4,), "norm/beta": (4,)}


def start(seed=0):
    """Return values by path, gradients, only some of which are clipped, and the variables."""
    rng = np.random.default_rng(seed)
    values = {path: rng.normal(size=shape) for path, shape in SHAPES.items()}
    scales = np.geomspace(3, 0.03, STEPS)
    gradients = [{path: rng.normal(size=shape) * scale for path, shape in SHAPES.items()} for scale in scales]
    variables = {}
    for path, value in values.items():
        layer, name = path.split("/")
        with keras.name_scope(layer):
            variables[path] = keras.Variable(value.astype("float32"), name=name)
        assert variables[path].path == path
    return values, gradients, variables


@functools.cache
def compiled(optimizer):
    import jax

    return jax.jit(optimizer.stateless_apply)


def apply(optimizer, grads, variables):
    """Apply gradients as Keras' trainers do: on JAX by one compiled function of the state."""
    tensors = [keras.ops.convert_to_tensor(grads[path].astype("float32")) for path in variables]
    targets = list(variables.values())
    if keras.backend.backend() != "jax":
        optimizer.apply(tensors, targets)
        return
    state = [v.value for v in optimizer.variables]
    new, state = compiled(optimizer)(state, tensors, [v.value for v in targets])
    for variable, value in zip([*targets, *optimizer.variables], [*new, *state], strict=True):
        variable.assign(value)


def assert_same(variables, expected, atol=2e-5):
    for path, value in expected.items():
        np.testing.assert_allclose(numpy(variables[path]), value, atol=atol, err_msg=path)


@pytest.mark.parametrize(
    "kind, rule, options",
    [*((*each, {}) for each in OPTIMIZERS), (kbz.AdamW, oracles.adamw, {"bias_correction": True})],
    ids=["adamw", "lamb", "adamw-corrected"],
)
def test_step_by_step(kind, rule, options):
    """The numbers are no optimizer's defaults, which the other tests have."""
    options = {"beta_1": 0.7, "beta_2": 0.9, "epsilon": 0.1, "weight_decay": 0.2, **options}
    values, gradients, variables = start()
    optimizer = kind(0.1, **options)
    optimizer.build(list(variables.values()))
    for grads, expected in zip(
        gradients, oracles.steps(rule, values, gradients, [0.1] * STEPS, **options), strict=True
    ):
        apply(optimizer, grads, variables)
        assert_same(variables, expected)


@pytest.mark.parametrize("kind, rule", OPTIMIZERS)
def test_weights_whose_memory_is_in_another_order(kind, rule):
    """On PyTorch orthogonal initial values are stored so, and its kernel takes memory as it comes."""
    values, gradients, _ = start()
    turned = {path: value.astype("float32").T.copy().T if value.ndim > 1 else value for path, value in values.items()}
    variables = {}
    for path, value in turned.items():
        layer, name = path.split("/")
        with keras.name_scope(layer):
            tensor = keras.ops.transpose(keras.ops.convert_to_tensor(value.T)) if value.ndim > 1 else value
            variables[path] = keras.Variable(lambda shape, dtype, tensor=tensor: tensor, shape=value.shape, name=name)
    optimizer = kind(0.1)
    optimizer.build(list(variables.values()))
    for grads, expected in zip(gradients, oracles.steps(rule, values, gradients, [0.1] * STEPS), strict=True):
        apply(optimizer, grads, variables)
        assert_same(variables, expected)


def test_lamb_where_a_norm_is_zero():
    """The ratio is then 1: weights that begin at zero move, and weights whose gradient is zero stay."""
    variables = {
        name: keras.Variable(np.full((2, 2), value), name="kernel") for name, value in (("a", 0.0), ("b", 2.0))
    }
    optimizer = kbz.Lamb(0.1, weight_decay=0.0)
    optimizer.build(list(variables.values()))
    apply(optimizer, {"a": np.full((2, 2), 0.5), "b": np.zeros((2, 2))}, variables)
    assert_same(variables, {"a": np.full((2, 2), -0.1), "b": np.full((2, 2), 2.0)})


def test_lamb_takes_query_key_and_value_of_a_block_apart():
    """The original has a matrix, and so a ratio, for each; ours are recognised by the name of their layer."""
    layer = kbz.layers.EncoderLayer(hidden_dim=8, num_heads=2, intermediate_dim=16)
    layer.build((None, None, 8))
    kernel = layer.attention.qkv.kernel
    rng = np.random.default_rng(0)
    value, gradient = rng.normal(size=kernel.shape) * np.repeat([0.1, 1.0, 10.0], 8), rng.normal(size=kernel.shape)
    kernel.assign(value.astype("float32"))
    optimizer = kbz.Lamb(0.1)
    optimizer.build([kernel])
    apply(optimizer, {"qkv/kernel": gradient}, {"qkv/kernel": kernel})
    (expected,) = oracles.steps(oracles.lamb, {"qkv/kernel": value}, [{"qkv/kernel": gradient}], [0.1])
    assert_same({"qkv/kernel": kernel}, expected)


@pytest.mark.parametrize("kind, rule", OPTIMIZERS)
def test_accumulation_step_by_step(kind, rule):
    """Two updates of three gradients each, after two gradients that a run left over; nothing moves in between."""
    values, gradients, variables = start()
    optimizer = kind(kbz.WarmupPolynomialDecay(0.1, warmup=0.0, total_steps=4), gradient_accumulation_steps=3)
    optimizer.build(list(variables.values()))
    for grads in start(seed=1)[1][:2]:
        apply(optimizer, grads, variables)
    optimizer._iterations.assign(0)
    means = [
        {path: np.mean([g[path] for g in part], axis=0) for path in SHAPES} for part in (gradients[:3], gradients[3:])
    ]
    after = [values] * 2 + [oracles.steps(rule, values, means, [0.1, 0.075])[0]] * 3
    after.append(oracles.steps(rule, values, means, [0.1, 0.075])[1])
    for step, (grads, expected) in enumerate(zip(gradients, after, strict=True), 1):
        before = [numpy(v) for v in (*optimizer._momentums, *optimizer._velocities)]
        apply(optimizer, grads, variables)
        assert_same(variables, expected)
        assert int(numpy(optimizer.iterations)) == step // 3
        moved = [
            np.any(numpy(v) != b) for v, b in zip((*optimizer._momentums, *optimizer._velocities), before, strict=True)
        ]
        assert moved == [step % 3 == 0] * len(moved)


@pytest.mark.parametrize("kind, rule", OPTIMIZERS)
def test_weights_without_a_gradient_stay(kind, rule):
    """For a head that a loss does not reach, Keras passes only the other weights, a different list each time."""
    values, gradients, variables = start()
    optimizer = kind(0.1)
    optimizer.build(list(variables.values()))
    weights, state = dict(values), {}
    for step, without in enumerate((None, "norm/bias", "dense/kernel", None), start=1):
        grads = {path: grad for path, grad in gradients[step].items() if path != without}
        rule(state, weights, oracles.clip(grads, 1.0), 0.1, step)
        tensors = [keras.ops.convert_to_tensor(grad.astype("float32")) for grad in grads.values()]
        optimizer.apply(tensors, [variables[path] for path in grads])
        assert_same(variables, weights)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"`bias_correction` must be True or False. Received: bias_correction='no'"):
        kbz.AdamW(0.1, bias_correction="no")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile the step")
def test_gradients_are_added_up_all_at_once():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    counts = []

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            counts[-1] += 1
            return operation(*arguments, **(options or {}))

    for number in (2, 8):
        variables = [keras.Variable(np.ones(3, "float32")) for _ in range(number)]
        optimizer = kbz.AdamW(0.1, gradient_accumulation_steps=4)
        optimizer.build(variables)
        gradients = [torch.full((3,), float(i)) for i in range(number)]
        for _ in range(2):  # The first writes, the second adds.
            counts.append(0)
            with Counted():
                optimizer.apply(gradients, variables)
        sums = [numpy(optimizer._accumulated_gradients[i]) for i in range(number)]
        np.testing.assert_array_equal(sums, [np.full(3, 2.0 * i) for i in range(number)])
    assert counts[:2] == counts[2:]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile the step")
def test_the_count_of_gradients_is_read_only_where_others_have_changed_it():
    """A GPU would finish all its work before each reading."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    readings = []

    class Read(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            if operation is torch.ops.aten._local_scalar_dense.default:
                readings.append(arguments)
            return operation(*arguments, **(options or {}))

    variable = keras.Variable(np.ones(3, "float32"))
    schedule = kbz.WarmupPolynomialDecay(0.1, warmup=0.25, total_steps=8)
    optimizer = kbz.AdamW(schedule, gradient_accumulation_steps=3)
    optimizer.build([variable])

    def updates(times):
        """Return after which of so many gradients the variable has moved."""
        moved = []
        for _ in range(times):
            before = numpy(variable)
            with Read():
                optimizer.apply([torch.ones(3)], [variable])
            moved.append(bool((numpy(variable) != before).any()))
        return moved

    assert updates(7) == [False, False, False, False, False, True, False]  # The first update has a rate of 0.
    assert len(readings) == 1
    optimizer._iterations.assign(3 * 2 + 2)  # As from a file; the one before was 7.
    assert updates(2) == [True, False]
    optimizer.apply([], [])  # Keras does not count it.
    assert updates(2) == [False, True]
    assert len(readings) == 2


@pytest.mark.parametrize("kind, rule", OPTIMIZERS)
@pytest.mark.parametrize("accumulation, batch_size", [(None, 4), (2, 2)])
def test_fit_accumulates_to_the_large_batch(kind, rule, accumulation, batch_size):
    schedule = kbz.WarmupPolynomialDecay(0.1, warmup=0.5, total_steps=4, power=2.0)
    optimizer = kind(schedule, global_clipnorm=2.5, gradient_accumulation_steps=accumulation)
    rows = np.arange(16).reshape(4, 4)
    expected = oracles.fit_oracle(rule, rows, [0.0, 0.05, 0.025, 0.00625], clipnorm=2.5)
    assert_same(oracles.fit(optimizer, batch_size), expected)


@pytest.mark.parametrize("kind, rule", OPTIMIZERS)
def test_loss_scaling_step_by_step(kind, rule):
    """Scaled gradients give the step of the unscaled ones; an overflow skips the step and halves the scale."""
    values, gradients, variables = start()
    optimizer = kbz.LossScaleOptimizer(kind(0.1), initial_scale=64.0, dynamic_growth_steps=4)
    optimizer.build(list(variables.values()))
    assert float(numpy(optimizer.scale_loss(keras.ops.convert_to_tensor(2.0)))) == 128.0
    expected = oracles.steps(rule, values, gradients, [0.1] * STEPS)
    scale = 64.0
    for step in range(STEPS):
        if step == 1:
            broken = {path: grad * scale for path, grad in gradients[1].items()}
            broken["norm/beta"] = np.array([1.0, np.inf, np.nan, 1.0])
            apply(optimizer, broken, variables)
            assert_same(variables, expected[0])
            scale = 32.0
        apply(optimizer, {path: grad * scale for path, grad in gradients[step].items()}, variables)
        assert_same(variables, expected[step])
        scale = 64.0 if step == 4 else scale  # four good steps since the bad one
        assert float(numpy(optimizer.dynamic_scale)) == scale
    assert int(numpy(optimizer.iterations)) == STEPS


def test_fit_skips_the_batch_that_overflows():
    """Loss scaling over accumulation: a batch that overflowed does not count towards an update."""
    x = oracles.X.copy()
    x[3] = np.inf
    optimizer = kbz.LossScaleOptimizer(kbz.AdamW(0.1, gradient_accumulation_steps=2), initial_scale=8.0)
    rows = [[0, 1, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13]]
    assert_same(oracles.fit(optimizer, 2, x), oracles.fit_oracle(oracles.adamw, rows, [0.1] * 3))
    assert float(numpy(optimizer.dynamic_scale)) == 4.0


@pytest.mark.parametrize("kind", [kbz.AdamW, kbz.Lamb])
def test_a_stateless_step_leaves_the_next_ones_alone(kind):
    """On PyTorch AdamW keeps a list of tensors, which in a stateless step are not the variables' own."""
    if keras.backend.backend() == "tensorflow":
        pytest.skip("Keras has no stateless step there.")
    values, gradients, variables = start()
    optimizer = kind(0.1)
    optimizer.build(list(variables.values()))
    targets = [keras.ops.copy(variable.value) for variable in variables.values()]
    state = [keras.ops.copy(variable.value) for variable in optimizer.variables]
    grads = [keras.ops.convert_to_tensor(gradients[0][path].astype("float32")) for path in variables]
    optimizer.stateless_apply(state, grads, targets)
    assert_same(variables, values, atol=1e-6)
    apply(optimizer, gradients[0], variables)
    for path, variable in variables.items():
        assert np.abs(numpy(variable) - values[path]).max() > 1e-3, path


def test_clips_by_the_summed_gradient_of_a_table():
    """If an id occurs twice, its row's gradient is the sum, and the norm is that of the sum."""
    table = keras.layers.Embedding(5, 2, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table])
    optimizer = kbz.AdamW(0.5, weight_decay=0.0, beta_1=0.0, beta_2=0.0, epsilon=1.0, global_clipnorm=0.1)
    model.compile(optimizer, loss=lambda y, p: p)
    model.fit(np.array([[1, 1, 4]]), np.zeros((1, 3, 2)), verbose=0)
    # d loss / d entry is 1/6 per occurrence, so 2/6 in row 1 and 1/6 in row 4: the norm is sqrt(2 * 4 + 2 * 1) / 6.
    expected = np.zeros((5, 2))
    for row, grad in ((1, 2 / 6), (4, 1 / 6)):
        grad *= 0.1 / (math.sqrt(10) / 6)
        expected[row] = -0.5 * grad / (grad + 1.0)
    np.testing.assert_allclose(numpy(table.embeddings), expected, atol=1e-6)


@pytest.mark.parametrize("more", [None, "names", "variables"])
@pytest.mark.parametrize("kind", [kbz.AdamW, kbz.Lamb])
def test_decay_leaves_biases_and_layer_norm_alone(kind, more):
    """It also leaves alone whatever else a user excludes."""
    backbone = kbz.BertBackbone(**TINY)
    tables = [w for w in backbone.trainable_variables if w.name == "embeddings"]
    optimizer = kind(0.1)
    if more:
        given = {"var_names": ["embeddings"]} if more == "names" else {"var_list": tables}
        optimizer.exclude_from_weight_decay(**given)
    optimizer.build(backbone.trainable_variables)
    decayed = {w.path for w in backbone.trainable_variables if optimizer._use_weight_decay(w)}
    names = ["kernel"] if more else ["kernel", "embeddings"]
    assert decayed == {w.path for w in backbone.trainable_variables if w.name in names}
    assert len(decayed) == 2 * 4 + 1 + (0 if more else 3)


def test_decay_asks_the_variable_not_its_layer():
    layer = keras.layers.Dense(2, name="bias_beta_gamma")
    layer.build((None, 2))
    layer.kernel.assign(np.full((2, 2), 2.0))
    optimizer = kbz.AdamW(0.5, weight_decay=0.1)
    optimizer.build(layer.trainable_variables)
    apply(optimizer, {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}, {"kernel": layer.kernel, "bias": layer.bias})
    np.testing.assert_allclose(numpy(layer.kernel), np.full((2, 2), 2.0 * (1 - 0.05)), rtol=1e-6)


def test_decay_may_be_taken_from_a_weight_between_two_steps():
    kernel = keras.Variable(np.full((2, 2), 2.0, "float32"), name="kernel")
    optimizer = kbz.AdamW(0.5, weight_decay=0.1)
    for excluded in ((), [kernel]):
        optimizer.exclude_from_weight_decay(var_list=excluded)
        optimizer.apply([keras.ops.zeros((2, 2))], [kernel])
        np.testing.assert_allclose(numpy(kernel), 2.0 * (1 - 0.05), rtol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="rounds what decay leaves of each weight")
@pytest.mark.parametrize("rate", [2e-6, 3e-5])
def test_small_decays_add_up(rate):
    values = np.random.default_rng(0).normal(0, 0.03, 1000).astype("float32")
    kernel = keras.Variable(values, name="kernel")
    optimizer = kbz.AdamW(rate, weight_decay=0.01)
    for _ in range(500):
        optimizer.apply([keras.ops.zeros(1000)], [kernel])
    decays = np.log(numpy(kernel).astype("float64") / values) / np.log1p(-0.01 * rate) / 500
    np.testing.assert_allclose(decays.mean(), 1, atol=0.07)
    np.testing.assert_allclose(decays, 1, atol=0.3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_in_half_precision(dtype):
    """In a loop of one's own, as `fit` refuses such weights. The update's turn, 65,534 of 65,536, overflows float16."""
    kernel = keras.Variable(np.full(4, 2.0), dtype=dtype, name="kernel")
    optimizer = kbz.AdamW(0.5, weight_decay=0.1)
    optimizer.build([kernel])
    optimizer._iterations.assign(4338)
    optimizer.apply([keras.ops.zeros(4, dtype)], [kernel])
    np.testing.assert_allclose(numpy(kernel).astype("float32"), 1.9, atol=0.01)


def test_no_weight_is_moved_by_an_infinite_gradient_unseen():
    """All weights become NaN at once, so that the next loss does too."""
    variables = [keras.Variable(np.ones(2, "float32"), name="kernel") for _ in range(2)]
    gradients = [keras.ops.convert_to_tensor(np.array([1.0, value], "float32")) for value in (1.0, np.inf)]
    kbz.AdamW(0.1).apply(gradients, variables)
    assert np.isnan([numpy(variable) for variable in variables]).all()


def test_decay_may_have_nothing_to_act_on():
    """This is so if only biases are trained, as in BitFit."""
    bias = keras.Variable(np.ones(3, "float32"), name="bias")
    kbz.AdamW(0.1, bias_correction=True).apply([keras.ops.ones(3)], [bias])
    np.testing.assert_allclose(numpy(bias), 0.9, atol=1e-5)  # A first step is the rate, whatever the gradient.


@pytest.mark.parametrize("kind, options", [(kbz.AdamW, {"bias_correction": True}), (kbz.Lamb, {})])
def test_config(kind, options):
    schedule = kbz.WarmupPolynomialDecay(1e-3, 0.2, 50)
    options = {"weight_decay": 0.02, "gradient_accumulation_steps": 3, **options}
    optimizer = kbz.LossScaleOptimizer(kind(schedule, **options), initial_scale=4.0)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(again) is kbz.LossScaleOptimizer
    assert type(again.inner_optimizer) is kind
    assert again.get_config() == optimizer.get_config()
    expected = {"epsilon": 1e-6, "beta_1": 0.9, "beta_2": 0.999, "global_clipnorm": 1.0, **options}
    assert {name: getattr(again.inner_optimizer, name) for name in expected} == expected


@pytest.mark.parametrize("kind", [kbz.AdamW, kbz.Lamb])
def test_a_saved_run_goes_on(kind, tmp_path):
    """If it is saved between the gradients of an update, what was accumulated comes back too."""

    def fit_on(model):
        model.fit(oracles.X[:3], oracles.Y[:3], batch_size=1, shuffle=False, verbose=0)
        return [numpy(v) for v in (*model.weights, *model.optimizer.variables)]

    model = oracles.linear_model(kind(0.1, gradient_accumulation_steps=2))
    fit_on(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is kind
    for on, again in zip(fit_on(model), fit_on(loaded), strict=True):
        np.testing.assert_array_equal(again, on)
    assert int(numpy(loaded.optimizer.iterations)) == 3


def test_a_norm_to_clip_at_is_positive():
    """PyTorch's own clipping would reverse the gradients."""
    for norm in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="`global_clipnorm` must be a positive number"):
            kbz.AdamW(global_clipnorm=norm)
    for kind in (kbz.AdamW, kbz.Lamb):  # By default they clip by the whole gradient.
        with pytest.raises(
            ValueError, match=r"must be None with `clipvalue`. Received: global_clipnorm=1.0, clipvalue=2"
        ):
            kind(clipvalue=2)
        assert kind(clipnorm=0.5, global_clipnorm=None).clipnorm == 0.5


def test_averaged_weights_are_the_models_own(classifier):
    """On JAX the next pass deletes the arrays that it was given."""
    x, y = random_inputs(), np.array([0, 1, 2])
    classifier.compile(kbz.AdamW(1e-3, use_ema=True))
    classifier.fit(x, y, verbose=0)
    averages = [numpy(average) for average in classifier.optimizer._model_variables_moving_average]
    for weight, average in zip(classifier.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(numpy(weight), average)
    classifier.predict(x, verbose=0)
    classifier.fit(x, y, verbose=0)


def test_scaled_losses_with_a_table():
    """Keras' `loss_scale_factor` divides gradients; TensorFlow's gradient of a table consists of rows."""
    backbone = kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0)
    classifier = kbz.BertTextClassifier(backbone, 3, dropout=0.0)
    before, after = classifier.get_weights(), []
    for scale in (None, 1024.0):
        classifier.set_weights(before)
        classifier.compile(kbz.AdamW(1e-3, loss_scale_factor=scale))
        classifier.train_on_batch(random_inputs(), np.array([0, 1, 2]))
        after.append(classifier.get_weights())
    for plain, scaled in zip(*after, strict=True):
        np.testing.assert_allclose(scaled, plain, atol=1e-5)


def test_averages_of_accumulated_steps_are_refused():
    with pytest.raises(ValueError, match="`use_ema` and `gradient_accumulation_steps` exclude"):
        kbz.Lamb(use_ema=True, gradient_accumulation_steps=2)
