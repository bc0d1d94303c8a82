"""Exact transition matrices of kernels, from the code that users run.

A `Script` stands in for a JAX key: each discrete choice of the kernel takes the next entry of a vector of outcomes and
its log-probability is added up. One abstract trace finds how many choices there are; then all outcomes of all states
are run in one compiled batch, and their probabilities are summed into P.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

MAX_CHOICES = 64
MAX_OUTCOMES = 20_000

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiling is most of the time


class Script:
    """A scripted key: see `terrazzo.samplers.randomness`."""

    def __init__(self, outcomes):
        self.outcomes = outcomes
        self.sizes = []
        self.log_prob = jnp.zeros(())

    def choose(self, log_probs):
        outcome = self.outcomes[len(self.sizes)]
        self.sizes.append(log_probs.shape[0])
        is_possible = self.log_prob > -jnp.inf  # what follows an impossible choice may be NaN
        self.log_prob = jnp.where(is_possible, self.log_prob + log_probs[outcome], -jnp.inf)
        return outcome


def choices(make, target):
    """The sizes of the choices of one step, in order."""
    scripts = []
    params, static = eqx.partition(target, eqx.is_array)

    def run(theta, outcomes, params):
        script = Script(outcomes)
        scripts.append(script)
        sampler = make(eqx.combine(params, static))
        return sampler.step(script, sampler.init(theta, None))[0].position

    theta = jax.ShapeDtypeStruct((target.space.num_dims,), jnp.int32)
    jax.eval_shape(run, theta, jax.ShapeDtypeStruct((MAX_CHOICES,), jnp.int32), params)
    return scripts[-1].sizes


def transition_matrices(make, target, stacked):
    """P for a batch of targets: shape (num_targets, num_states, num_states).

    Args:
        make: `target -> SamplingAlgorithm`.
        target: The pattern; its arrays are replaced by slices of `stacked`.
        stacked: The arrays of `target` with a leading axis.
    """
    static = eqx.filter(target, eqx.is_array, inverse=True)
    sizes = choices(make, target)
    num_outcomes = int(np.prod(sizes))
    assert num_outcomes <= MAX_OUTCOMES, f"{num_outcomes} outcomes a step: use a smaller space"
    outcomes = np.stack(np.unravel_index(np.arange(num_outcomes), sizes), axis=-1).astype(np.int32)
    states = jnp.asarray(target.space.enumerate())
    num_states = len(states)

    def one(params, theta, outcome):
        sampler = make(eqx.combine(params, static))
        script = Script(outcome)
        new, _ = sampler.step(script, sampler.init(theta, None))
        return target.space.index(new.position), jnp.exp(script.log_prob)

    def rows(params):
        over_outcomes = jax.vmap(one, (None, None, 0))
        to, probability = jax.vmap(over_outcomes, (None, 0, None))(params, states, jnp.asarray(outcomes))
        start = jnp.arange(num_states)[:, None]
        return jnp.zeros((num_states, num_states)).at[start, to].add(probability)

    return np.asarray(quick_jit(lambda stacked: jax.lax.map(rows, stacked))(stacked))


def stationary(log_probs):
    """Probabilities from unnormalised log-probabilities, over the last axis."""
    weights = np.exp(log_probs - np.max(log_probs, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
