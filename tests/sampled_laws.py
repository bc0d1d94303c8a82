"""The law of sampled steps: chains that start in pi (by enumeration) are in pi after one step or a few.

A chi-square over all states. The number of draws says what it sees: 65,000 draws show an error of 4 % in a state of
probability 1/24 at a false-alarm rate of 1e-6. Compilation is most of the time, so code is compiled with little effort.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from scripted import stationary
from small_targets import log_table

ALPHA = 1e-6
NUM_DRAWS = 2**16
QUICK = {"xla_backend_optimization_level": 0}


def chi_square(counts, pi):
    """The p-value of counts against probabilities; impossible cells must be empty, rare ones are pooled."""
    expected = pi * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    is_rare = expected < 10
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    wanted = np.append(expected[~is_rare], expected[is_rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    return stats.chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(wanted) - 1)


def is_off(gap):
    """Whether the log pi that chains carry is not that of their configurations, beyond rounding."""
    return not np.abs(np.asarray(gap)).max() < (1e-9 if gap.dtype == np.float64 else 1e-4)


def stepper(make, *, num_steps=1):
    """`(target, extra, starts, keys) -> (where chains are, how wrong their log pi is)`; `make(target, *extra)`.

    Compiled once for all targets that differ in their arrays only.
    """

    def run(target, extra, starts, keys):
        sampler = make(target, *extra)

        def one(theta, key):
            init_key, *step_keys = jax.random.split(key, num_steps + 1)
            state = sampler.init(theta, init_key)
            if num_steps == 1:
                state, _ = sampler.step(step_keys[0], state)
            else:
                state, _ = jax.lax.scan(lambda s, k: (sampler.step(k, s)[0], None), state, jnp.stack(step_keys))
            return target.space.index(state.position), state.log_prob - target.log_prob(state.position)

        return jax.vmap(one)(starts, keys)

    return eqx.filter_jit(run, compiler_options=QUICK)


def invariance(run, target, *extra, num_draws=NUM_DRAWS, seed=0):
    """The p-value of the steps that a `stepper` takes from exact starts; 0 if a chain carries a log pi not its own."""
    pi = stationary(log_table(target).astype(float))
    starts = target.space.enumerate()[np.random.default_rng(seed).choice(len(pi), num_draws, p=pi)]
    keys = jax.random.split(jax.random.key(seed), num_draws)
    index, gap = run(target, extra, jnp.asarray(starts), keys)
    if is_off(gap):
        return 0.0
    return chi_square(np.bincount(np.asarray(index), minlength=len(pi)), pi)
