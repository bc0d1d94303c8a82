"""What each kernel costs beyond the evaluations it needs, as a ratio in one run.

    ratio = time of one step / (num_evaluations x time of one evaluation)

for 64 chains under jit + vmap, on targets whose evaluation is real work: a restricted Boltzmann machine with 784
visible and 500 hidden units, and 4-bit softmax regression on Breast cancer (d = 62, 569 rows). A spin glass (d = 512,
without its cheap conditionals) shows what a cheap evaluation does: random numbers alone then cost as much. A gradient
counts as the evaluation it is in `num_evaluations`, though it costs more than one: the time of value and gradient
together is printed too. The requirement is a ratio of at most 2.

Chains in one batch wait for the slowest: `slice_gibbs`, `zanella` and `tabu` need a random number of evaluations, and
their ratios have the time that chains stand still in them, the more the shorter the step (`slice_gibbs` with one site
update a step instead of its 16: 3.3 on Breast cancer).

Two methods multiply by matrices that warm-up learns: `integer_metropolis` by the factor of a covariance (one product of
a (d, d) matrix a step) and `any_scale` by a curvature (two products). These are the methods' own arithmetic and no
overhead; the table has both without a matrix, as they start, and the lines below it have them with one.

    python benchmarks/samplers.py [--targets rbm_784 breast_cancer digits spin_glass_512] [--samplers gibbs ...]
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo import problems, samplers
from terrazzo.errors import UnsupportedError
from terrazzo.problems.boltzmann import VisibleUnits
from terrazzo.samplers.kernels.any_scale import curvature_of

NUM_CHAINS = 64
MIN_SECONDS = 0.25
NUM_REPEATS = 3
LIMIT = 2.0
# tuned values that are typical in the mass, so that one step does what it does in a run
OPTIONS = {
    "metropolis": {"probability": 0.05}, "discrete_langevin": {"step_size": 0.3},
    "path_auxiliary": {"path_length": 6.0}, "dlmc": {"num_changes": 4.0},
    "zanella": {"duration": 0.05}, "tabu": {"duration": 0.05},
    "parallel_tempering": {"num_temperatures": 4},
}  # fmt: skip
WITH_MATRIX = {
    "integer_metropolis": lambda d: {"factor": jnp.eye(d)},
    "any_scale": lambda d: {"curvature": curvature_of(-jnp.eye(d))},
}


def spin_glass(num_spins):
    fn = problems.spin_glass(num_spins, beta=1.0).target.log_prob_fn
    return tz.Target(fn, tz.binary(num_spins))


def boltzmann_machine(num_visible, num_hidden):
    """A restricted Boltzmann machine of the size the field trains on MNIST, with random weights."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.05, (num_hidden, num_visible))
    return tz.Target(VisibleUnits(weights, np.zeros(num_visible), np.zeros(num_hidden)), tz.binary(num_visible))


TARGETS = {
    "rbm_784": lambda: boltzmann_machine(784, 500),
    "spin_glass_128": lambda: spin_glass(128),
    "spin_glass_512": lambda: spin_glass(512),
    "breast_cancer": lambda: problems.quantised_logistic("breast_cancer").target,
    "digits": lambda: problems.quantised_logistic("digits").target,
}


def clock():
    """CPU seconds of this process where the work is done by the CPU: other programs then do not disturb the ratios."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def seconds_of(loop, carry):
    """The least time of one iteration of `loop(carry, count)` over some repeats, `count` chosen to be long enough."""
    compiled, count = jax.jit(loop), 1
    jax.block_until_ready(compiled(carry, count))
    while True:
        tick = clock()
        jax.block_until_ready(compiled(carry, count))
        spent = clock() - tick
        if spent > MIN_SECONDS / 4 or count >= 2**20:
            break
        count *= 4
    times = [spent / count]
    count = max(1, int(count * MIN_SECONDS / spent))
    for _ in range(NUM_REPEATS if spent < 1 else 0):
        tick = clock()
        jax.block_until_ready(compiled(carry, count))
        times.append((clock() - tick) / count)
    return min(times)


def evaluation_seconds(target, fn, theta):
    """One batch of 64 evaluations, in a loop where each depends on the last."""
    sizes = jnp.asarray(target.space.sizes)

    def loop(theta, count):
        def body(i, theta):
            out = jax.vmap(fn)(theta)
            nudge = sum(jnp.isfinite(leaf.reshape(NUM_CHAINS, -1).sum(axis=1)) for leaf in jax.tree.leaves(out))
            site = i % theta.shape[1]
            return theta.at[:, site].set((theta[:, site] + nudge.astype(theta.dtype)) % sizes[site])

        return jax.lax.fori_loop(0, count, body, theta)

    return seconds_of(loop, theta)


def step_seconds(spec, target, theta, **options):
    options = OPTIONS.get(spec.name, {}) | options
    if spec.check is not None:
        spec.check(target)
    options = options if spec.prepare is None else spec.prepare(target, **options)
    sampler = spec.factory(target, **options)
    keys = jax.random.split(jax.random.key(0), NUM_CHAINS)
    states = jax.jit(jax.vmap(sampler.init))(theta, keys)

    def loop(carry, count):
        def body(i, carry):
            states, total = carry
            keys = jax.random.split(jax.random.fold_in(jax.random.key(1), i), NUM_CHAINS)
            states, info = jax.vmap(sampler.step)(keys, states)
            return states, total + info.num_evaluations.astype(jnp.float32).mean()

        return jax.lax.fori_loop(0, count, body, carry)

    start = (states, jnp.zeros((), jnp.float32))
    tick = clock()
    states, _ = jax.jit(loop)(start, 1)
    num_steps = 50 if jax.block_until_ready(states) and clock() - tick < 10 else 3  # a little way towards the mass
    states, total = jax.jit(loop)((states, jnp.zeros((), jnp.float32)), num_steps)
    return seconds_of(loop, (states, jnp.zeros((), jnp.float32))), float(total) / num_steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", nargs="+", default=["rbm_784", "breast_cancer"], choices=TARGETS)
    parser.add_argument("--samplers", nargs="+", default=None)
    options = parser.parse_args()
    specs = [spec for spec in samplers.REGISTRY.values() if "transport" not in spec.needs]
    if options.samplers is not None:
        specs = [samplers.get(name) for name in options.samplers]
    worst = 0.0
    for name in options.targets:
        target = TARGETS[name]()
        theta = target.space.random(jax.random.key(2), (NUM_CHAINS,))
        one = evaluation_seconds(target, target.log_prob, theta)
        both = evaluation_seconds(
            target, lambda t: jax.value_and_grad(target.log_prob_relaxed)(t.astype(jnp.result_type(float))), theta
        )
        print(f"\n{name}: d = {target.space.num_dims}, {NUM_CHAINS} chains, {jax.devices()[0].device_kind}")
        print(f"one evaluation {one * 1e6:.1f} us, value and gradient {both * 1e6:.1f} us")
        print(f"{'sampler':<24}{'step us':>10}{'evaluations':>13}{'us/evaluation':>15}{'ratio':>8}")

        def ratio_of(spec, **options):
            spent, count = step_seconds(spec, target, theta, **options)
            one = evaluation_seconds(target, target.log_prob, theta)  # again: clocks drift
            ratio = spent / (count * one)
            line = f"{spec.name:<24}{spent * 1e6:>10.1f}{count:>13.1f}{spent / count * 1e6:>15.2f}{ratio:>8.2f}"
            return ratio, line

        for spec in specs:
            try:
                ratio, line = ratio_of(spec)
            except UnsupportedError as error:
                print(f"{spec.name:<24}{'-':>10}   {str(error).splitlines()[0][:70]}")
                continue
            worst = max(worst, ratio)
            print(line + ("" if ratio <= LIMIT else "  > 2"), flush=True)
        for spec in specs:
            if spec.name in WITH_MATRIX:
                print(ratio_of(spec, **WITH_MATRIX[spec.name](target.space.num_dims))[1] + "  with a learned matrix")
    print(f"\nworst ratio {worst:.2f} (at most {LIMIT:g} is required)")
    return 0 if np.isfinite(worst) else 1


if __name__ == "__main__":
    sys.exit(main())
