"""AdamW and LAMB in NumPy, from the papers, and a model small enough to train by hand."""

import keras
import numpy as np

BETA_1, BETA_2, EPSILON, DECAY = 0.9, 0.999, 1e-6, 0.01


def clip(grads, norm):
    total = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
    return {name: grad * min(1.0, norm / total) for name, grad in grads.items()}


def moments(state, name, grad, beta_1, beta_2):
    m, v = state.get(name, (0.0, 0.0))
    state[name] = beta_1 * m + (1 - beta_1) * grad, beta_2 * v + (1 - beta_2) * grad**2
    return state[name]


def adamw(
    state, weights, grads, rate, t, bias_correction=False,
    beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON, weight_decay=DECAY,
):  # fmt: skip
    """As AdamWeightDecayOptimizer in google-research/bert, optimization.py: the rate scales decay, of kernels only."""
    for name, grad in grads.items():
        m, v = moments(state, name, grad, beta_1, beta_2)
        if bias_correction:  # Kingma & Ba 2015, section 2, in the order Keras computes it
            update = np.sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (np.sqrt(v) + epsilon)
        else:
            update = m / (np.sqrt(v) + epsilon)
        if name.endswith("kernel"):
            update = update + weight_decay * weights[name]
        weights[name] = weights[name] - rate * update


def lamb(
    state, weights, grads, rate, t, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON, weight_decay=DECAY
):  # fmt: skip
    """You et al. 2019, Algorithm 2; biases and LayerNorm as in google-research/albert, lamb_optimizer.py."""
    for name, grad in grads.items():
        m, v = moments(state, name, grad, beta_1, beta_2)
        update = m / (1 - beta_1**t) / (np.sqrt(v / (1 - beta_2**t)) + epsilon)
        if name.endswith("kernel"):
            update = update + weight_decay * weights[name]
            parts = np.split(np.arange(update.shape[1]), 3 if name.endswith("qkv/kernel") else 1)
            for columns in parts:
                weight_norm = np.linalg.norm(weights[name][:, columns])
                update_norm = np.linalg.norm(update[:, columns])
                update[:, columns] *= weight_norm / update_norm if weight_norm and update_norm else 1.0
        weights[name] = weights[name] - rate * update


def steps(rule, weights, gradients, rates, clipnorm=1.0, **options):
    """Return the weights after each step."""
    weights, state, after = dict(weights), {}, []
    for t, (grads, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        rule(state, weights, clip(grads, clipnorm), rate, t, **options)
        after.append(dict(weights))
    return after


# --- A linear model with the mean squared error: its gradient is one line.

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 3)), RNG.normal(size=(16, 2))
START = {"kernel": RNG.normal(size=(3, 2)), "bias": RNG.normal(size=2)}


def linear_model(optimizer):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.set_weights([START["kernel"], START["bias"]])
    model.compile(optimizer, loss="mse")
    return model


def fit(optimizer, batch_size, x=X):
    """Return the weights after one epoch of Keras' `fit`, in the order of the rows."""
    model = linear_model(optimizer)
    model.fit(x, Y, batch_size=batch_size, shuffle=False, verbose=0)
    return dict(zip(("kernel", "bias"), model.get_weights(), strict=True))


def fit_oracle(rule, rows, rates, clipnorm=1.0):
    """Compute the same with `rule` on lists of rows, one list per update."""
    weights, state = dict(START), {}
    for t, (batch, rate) in enumerate(zip(rows, rates, strict=True), 1):
        error = 2 * (X[batch] @ weights["kernel"] + weights["bias"] - Y[batch]) / Y[batch].size
        rule(state, weights, clip({"kernel": X[batch].T @ error, "bias": error.sum(0)}, clipnorm), rate, t)
    return weights
