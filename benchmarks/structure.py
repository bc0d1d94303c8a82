"""Sweeps a second of a plain Ising function, read by Terrazzo, beside a hand-written checkerboard in the same run.

python benchmarks/structure.py --sides 16 32 64 --chains 16          # a CPU
python benchmarks/structure.py --sides 16 32 64 --chains 128         # a GPU
python benchmarks/structure.py --linear --chains 16                  # linear front ends
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo import problems
from terrazzo.samplers.kernels import coloured_gibbs
from terrazzo.samplers.kernels.gibbs import prepare_systematic, systematic_gibbs
from terrazzo.targets import structure

COUPLING = 0.44068679350977147


def plain_ising(side):
    """What a user writes."""

    def log_prob(theta):
        spins = 2.0 * theta.reshape(side, side) - 1.0
        return COUPLING * jnp.sum(spins * (jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1)))

    return log_prob


def checkerboard(side):
    """What an expert writes."""
    colour = jnp.asarray(np.indices((side, side)).sum(axis=0) % 2)

    def sweep(key, spins):
        for parity, part in enumerate(jax.random.split(key, 2)):
            near = sum(jnp.roll(spins, step, axis) for step in (1, -1) for axis in (0, 1))
            up = jax.random.uniform(part, spins.shape) < jax.nn.sigmoid(2 * COUPLING * near)
            spins = jnp.where(colour == parity, jnp.where(up, 1.0, -1.0), spins)
        return spins

    return sweep


def timed(sweep, start, chains, seconds, number=16):
    """Sweeps a second of all chains together, best of three, after compilation."""
    states = jnp.broadcast_to(start, (chains, *start.shape))

    @jax.jit
    def run(key, states, number):
        def body(i, carry):
            keys = jax.random.split(jax.random.fold_in(key, i), chains)
            return jax.vmap(sweep)(keys, carry)

        return jax.lax.fori_loop(0, number, body, states)

    best = 0.0
    run(jax.random.key(0), states, number).block_until_ready()
    while True:
        tick = time.perf_counter()
        states = run(jax.random.key(1), states, number).block_until_ready()
        wall = time.perf_counter() - tick
        if wall > seconds / 4:
            break
        number *= 2
    for seed in range(3):
        tick = time.perf_counter()
        run(jax.random.key(seed), states, number).block_until_ready()
        best = max(best, number / (time.perf_counter() - tick))
    return best


def linear_models():
    """(name, log_prob, d): a dense spin glass, a regression with 100 rows, an RBM."""
    rng = np.random.default_rng(0)
    couplings, rows = rng.normal(size=(1000, 1000)) * 0.02, jnp.asarray(rng.normal(size=(100, 1000)))
    signs, weights = jnp.asarray(2.0 * rng.integers(0, 2, 100) - 1.0), jnp.asarray(rng.normal(size=(784, 500)) * 0.05)
    couplings = jnp.asarray(couplings + couplings.T)

    def glass(theta):
        spins = 2.0 * theta - 1.0
        return spins @ couplings @ spins

    def regression(theta):
        return jax.nn.log_sigmoid(signs * (rows @ theta)).sum() - 0.1 * (theta**2).sum()

    def rbm(theta):
        return jax.nn.softplus(theta @ weights + 0.1).sum() + 0.1 * theta.sum()

    as_real = lambda f: lambda theta: f(theta.astype(jnp.result_type(float)))
    return [
        ("dense glass", as_real(glass), 1000),
        ("regression", as_real(regression), 1000),
        ("rbm", as_real(rbm), 784),
    ]


def sweep_of(target, kernel=systematic_gibbs, **options):
    """A step of a kernel, from configuration to configuration."""
    sampler = kernel(target, **options)
    return lambda key, theta: sampler.step(key, sampler.init(theta))[0].position


def measure_linear(options):
    """Steps of `systematic_gibbs` by full evaluations, and by what `prepare` reads, in the same run."""
    targets = [(name, tz.Target(log_prob, tz.binary(num_dims))) for name, log_prob, num_dims in linear_models()]
    targets.append(("breast cancer", problems.quantised_logistic("breast_cancer").target))
    for name, target in targets:
        tick = time.perf_counter()
        found = prepare_systematic(target)
        reading = time.perf_counter() - tick
        start = jnp.zeros(target.space.num_dims, jnp.int32)
        plain = timed(sweep_of(target), start, options.chains, options.seconds, number=1)
        ours = timed(sweep_of(target, **found), start, options.chains, options.seconds, number=1)
        line = {"model": name, "chains": options.chains, "dims": target.space.num_dims,
                "read": type(found.get("conditionals")).__name__, "reading_s": round(reading, 2),
                "ms_a_sweep": round(1e3 / ours, 2), "plain_ms_a_sweep": round(1e3 / plain, 2),
                "ratio": round(ours / plain, 2)}  # fmt: skip
        print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sides", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--linear", action="store_true", help="steps of systematic_gibbs on linear front ends instead")
    options = parser.parse_args()
    if options.linear:
        return measure_linear(options)
    for side in options.sides:
        target = tz.Target(plain_ising(side), tz.binary(side * side))
        tick = time.perf_counter()
        found = coloured_gibbs.prepare(target)
        reading = time.perf_counter() - tick
        theta = jnp.zeros(side * side, jnp.int32)
        by_hand = timed(checkerboard(side), jnp.ones((side, side)), options.chains, options.seconds)
        by_reading = timed(
            sweep_of(target, coloured_gibbs.coloured_gibbs, **found), theta, options.chains, options.seconds
        )
        line = {
            "side": side, "chains": options.chains, "device": jax.devices()[0].device_kind,
            "reading_s": round(reading, 3),
            "sweeps_per_s": round(by_reading, 1), "hand_written_per_s": round(by_hand, 1),
            "ratio": round(by_reading / by_hand, 3),
        }  # fmt: skip
        print(json.dumps(line), flush=True)
    for side in (64, 256):
        tick = time.perf_counter()
        structure.read(plain_ising(side), np.full(side * side, 2)).colour_logits()
        print(json.dumps({"reading": f"Ising {side} x {side}", "seconds": round(time.perf_counter() - tick, 2)}))


if __name__ == "__main__":
    main()
