"""Our training loop against a hand-written minimal JAX loop of the same network, as a ratio in one run.

Iris-sized: d = 15, K = 16, 4 affine couplings, MLP [256]. Breast-cancer-sized: d = 62, K = 16, 8 affine couplings, MLP
[512]. The minimal loop has raw weight arrays, Python loops over the layers, plain Adam and nothing else: no history,
no clipping, no groups, no safe-guards.

    python benchmarks/training_loop.py
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.training import fit

BATCH = 128


def logistic_target(num_features, num_classes, num_rows, seed=0):
    rng = np.random.default_rng(seed)
    data = jnp.asarray(rng.normal(size=(num_rows, num_features)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, num_classes, num_rows))
    space = tz.Space(tz.integers(0, 15, (num_features, num_classes)))

    def log_prob(theta):
        logits = data @ (theta / 15.0 * 8.0 - 4.0)
        return jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(num_rows), labels])

    return tz.Target(log_prob, space)


# ---- the minimal loop


def minimal_parameters(rng, d, num_layers, width, context):
    def dense(n_in, n_out, scale=1.0):
        return [
            jnp.asarray(rng.uniform(-1, 1, s) * scale / np.sqrt(n_in), jnp.float32) for s in ((n_in, n_out), (n_out,))
        ]

    half = d // 2
    flow = [dense(half, width) + dense(width, 2 * (d - half), 0.01) for _ in range(num_layers)]
    conditional = [dense(half + context, width) + dense(width, 2 * (d - half), 0.01) for _ in range(num_layers)]
    return {"flow": flow, "conditional": conditional, "context": dense(d, width) + dense(width, context)}


def minimal_loss(parameters, z, log_prob, shuffles, unshuffles, size):
    d, half = z.shape[1], z.shape[1] // 2

    def net(w, x):
        return jax.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3]

    x, log_det = z, 0.0
    for w, s in zip(parameters["flow"], shuffles, strict=True):
        raw = net(w, x[:, :half]).reshape(len(x), d - half, 2)
        log_scale = 2.0 * jnp.tanh(0.5 * raw[..., 0])
        x = jnp.concatenate([x[:, :half], x[:, half:] * jnp.exp(log_scale) + raw[..., 1]], 1)[:, s]
        log_det += log_scale.sum(1)
    y = x
    x = size * jax.nn.sigmoid(y)
    theta = jax.lax.stop_gradient(jnp.clip(jnp.floor(x), 0, size - 1))
    relaxed = theta + x - jax.lax.stop_gradient(x)
    log_det += (jnp.log(size) + jax.nn.log_sigmoid(y) + jax.nn.log_sigmoid(-y)).sum(1)
    lower, upper = jnp.log(theta) - jnp.log(size - theta), jnp.log(theta + 1) - jnp.log(size - theta - 1)
    log_u = jnp.log(size) + jax.nn.log_sigmoid(y) + jax.nn.log_sigmoid(-lower) + jnp.log(-jnp.expm1(lower - y))
    log_1mu = jnp.log(size) + jax.nn.log_sigmoid(upper) + jax.nn.log_sigmoid(-y) + jnp.log(-jnp.expm1(y - upper))
    w, log_q = log_u - log_1mu, -(log_u + log_1mu).sum(1)
    context = net(parameters["context"], 2.0 * relaxed / (size - 1.0) - 1.0)
    for p, s in zip(parameters["conditional"][::-1], unshuffles[::-1], strict=True):
        w = w[:, s]
        raw = net(p, jnp.concatenate([w[:, :half], context], 1)).reshape(len(w), d - half, 2)
        log_scale = 2.0 * jnp.tanh(0.5 * raw[..., 0])
        w = jnp.concatenate([w[:, :half], (w[:, half:] - raw[..., 1]) * jnp.exp(-log_scale)], 1)
        log_q -= log_scale.sum(1)
    log_q += -0.5 * (w**2).sum(1) - 0.5 * d * jnp.log(2 * jnp.pi)
    base = -0.5 * (z**2).sum(1) - 0.5 * d * jnp.log(2 * jnp.pi)
    return jnp.mean(base - jax.vmap(log_prob)(relaxed) - log_q - log_det)


def minimal_loop(target, num_layers, width, num_steps):
    rng = np.random.default_rng(0)
    d = target.space.num_dims
    parameters = minimal_parameters(rng, d, num_layers, width, width)
    shuffles = [rng.permutation(d) for _ in range(num_layers)]
    unshuffles = [np.argsort(s) for s in shuffles]

    def step(carry, key):
        parameters, m, v, t = carry
        z = jax.random.normal(key, (BATCH, d))
        loss, grad = jax.value_and_grad(minimal_loss)(
            parameters, z, target.log_prob_relaxed, shuffles, unshuffles, 16.0
        )
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grad)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grad)
        parameters = jax.tree.map(
            lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), parameters, m, v
        )
        return (parameters, m, v, t), loss

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    run = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))
    return run, (parameters, zeros, zeros, 0.0), jax.random.split(jax.random.key(0), num_steps)


def compare(name, target, num_layers, width, num_steps, repeats=3):
    run, carry, keys = minimal_loop(target, num_layers, width, num_steps)
    jax.block_until_ready(run(carry, keys))
    flow = tz.transports.flow_transport(
        target.space,
        key=jax.random.key(0),
        architecture="paper",
        num_layers=num_layers,
        width=width,
        context_width=width,
    )

    def ours():
        objective = tz.reverse_kl("straight_through")
        options = {"num_steps": num_steps, "check_every": num_steps, "start_beta": 1.0}
        return fit(jax.random.key(1), flow, target, objective=objective, **options)

    ours()
    pairs = []
    for _ in range(repeats):
        tick = time.perf_counter()
        jax.block_until_ready(run(carry, keys))
        minimal = time.perf_counter() - tick
        tick = time.perf_counter()
        ours()
        pairs.append((minimal, time.perf_counter() - tick))
    minimal, mine = (min(p[i] for p in pairs) / num_steps * 1e3 for i in (0, 1))
    print(f"{name}: minimal {minimal:.2f} ms, terrazzo {mine:.2f} ms an iteration, ratio {mine / minimal:.2f}")
    return mine / minimal


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    iris = compare("Iris-sized (d=15)", logistic_target(5, 3, 150), 4, 256, steps)
    cancer = compare("Breast-cancer-sized (d=62)", logistic_target(31, 2, 569), 8, 512, steps // 4)
    sys.exit(0 if max(iris, cancer) <= 1.3 else 1)
