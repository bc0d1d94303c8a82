"""Exact transition matrices of kernels, from the code that users run.

A `Script` stands in for a JAX key: each discrete choice of the kernel takes the next entry of a vector of outcomes and
its log-probability is added up. One abstract trace finds how many choices there are; then all outcomes of all states
are run in one compiled batch, and their probabilities are summed into P.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from terrazzo import Target

MAX_CHOICES = 64


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


def choices(make, target, state_fn):
    """The sizes of the choices of one step, in order."""
    script = Script(jnp.zeros(MAX_CHOICES, jnp.int32))
    theta = jax.ShapeDtypeStruct((target.space.num_dims,), jnp.int32)
    params, static = eqx.partition(target, eqx.is_array)

    def run(theta, params):
        sampler = make(eqx.combine(params, static))
        return sampler.step(script, state_fn(sampler, theta))[0].position

    jax.eval_shape(run, theta, params)
    return script.sizes


def transition_matrices(make, target: Target, stacked, *, state_fn=None, chunk=2**22):
    """P for a batch of targets: shape (num_targets, num_states, num_states).

    Args:
        make: `target -> SamplingAlgorithm`.
        target: The pattern; its arrays are replaced by slices of `stacked`.
        stacked: The target's arrays (`eqx.filter(target, eqx.is_array)`) with a leading axis.
        state_fn: `(sampler, theta) -> state`, by default `sampler.init(theta)`.
    """
    state_fn = state_fn or (lambda sampler, theta: sampler.init(theta, None))
    static = eqx.filter(target, eqx.is_array, inverse=True)
    sizes = choices(make, target, state_fn)
    outcomes = np.stack(np.unravel_index(np.arange(int(np.prod(sizes))), sizes), axis=-1).astype(np.int32)
    states = jnp.asarray(target.space.enumerate())
    num_states = len(states)

    def one(params, theta, outcome):
        sampler = make(eqx.combine(params, static))
        script = Script(outcome)
        new, _ = sampler.step(script, state_fn(sampler, theta))
        return target.space.index(new.position), jnp.exp(script.log_prob)

    @jax.jit
    def rows(params, outcomes):
        over_outcomes = jax.vmap(one, (None, None, 0))
        to, probability = jax.vmap(over_outcomes, (None, 0, None))(params, states, outcomes)
        start = jnp.arange(num_states)[:, None]
        return jnp.zeros((num_states, num_states)).at[start, to].add(probability)

    leaves = jax.tree.leaves(stacked)
    num_targets = leaves[0].shape[0]
    per_call = max(1, chunk // max(1, num_states * len(outcomes) * num_targets))
    assert per_call >= 1, "too many outcomes"
    return np.asarray(jax.jit(jax.vmap(rows, (0, None)))(stacked, jnp.asarray(outcomes)))


def stationary(log_probs):
    """Probabilities from unnormalised log-probabilities, over the last axis."""
    weights = np.exp(log_probs - np.max(log_probs, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
