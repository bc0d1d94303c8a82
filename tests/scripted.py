"""Exact transition matrices of kernels, from the code that users run.

A `Script` stands in for a JAX key, and enumerations for the functions of `samplers.parts.randomness`: each discrete
choice of the kernel takes the next entry of a vector of outcomes and its log-probability is added up. One abstract
trace finds how many choices there are; then all outcomes of all states are run in one compiled batch, and their
probabilities are summed into P. The draws themselves are tested in `test_randomness.py` and by sampled steps.
"""

from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.randomness import log1mexp, log_normalised

MAX_CHOICES = 64
MAX_OUTCOMES = 20_000

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiling is most of the time


class Script:
    """A stand-in for a key: it is told the log-probabilities of the outcomes and says which one happens."""

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


# ---- what stands in for the draws


def split(key, num=2):
    return [key] * num  # a script is one stream


def categorical(key, logits, valid=None):
    return key.choose(log_normalised(logits, valid))


def keys_of_rows(key, counts, num_values, dtype):
    return [key] * len(counts)


def categorical_rows(key, logits, valid=None, sizes=None):
    log_probs = log_normalised(logits, valid)
    sizes = [logits.shape[1]] * logits.shape[0] if sizes is None else [int(n) for n in sizes]
    return jnp.stack([key.choose(log_probs[i, :n]) for i, n in enumerate(sizes)])


def choice_rows(key, log_stay, log_moves, num_choices):
    choices = jnp.concatenate([log_stay[None], log_moves])
    return jnp.stack([key.choose(choices[:n, i]) for i, n in enumerate(num_choices)])


def bernoulli(key, log_prob):
    return key.choose(jnp.stack([log1mexp(log_prob), log_prob])) == 1


def bernoulli_rows(key, log_probs):
    return jnp.stack([bernoulli(key, p) for p in log_probs])


def uniform_index(key, num):
    return key.choose(jnp.full(num, -np.log(num)))


def uniform_rows(key, sizes):
    return jnp.stack([uniform_index(key, int(n)) for n in sizes])


def ordered_subset(key, log_weights, num):
    log_weights = randomness.sanitise(log_weights)
    chosen, is_left = [], jnp.ones(log_weights.shape, bool)
    for _ in range(num):
        chosen.append(key.choose(log_normalised(jnp.where(is_left, log_weights, -jnp.inf), is_left)))
        is_left = is_left.at[chosen[-1]].set(False)
    return jnp.stack(chosen)


def path_ranks(key, log_weights, limit, length):
    path = ordered_subset(key, log_weights, limit)
    ranks = jnp.full(log_weights.shape, limit, jnp.int32).at[path].set(jnp.arange(limit, dtype=jnp.int32))
    return path, jnp.where(ranks < length, ranks, limit)


def random_subset(key, num_items, num):
    return randomness.after_swaps(uniform_rows(key, num_items - np.arange(num)))


def moves_and_signs(key, log_prob, num):
    is_moving = bernoulli_rows(key, jnp.full(num, log_prob))
    return is_moving, uniform_rows(key, np.full(num, 2))


def normal(key, shape):
    """Plus or minus one fixed vector: enough where only symmetry is relied upon."""
    fixed = jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), jnp.result_type(float))
    return jnp.where(key.choose(jnp.full(2, -np.log(2.0))) == 1, fixed, -fixed)


def loop(key, num, body, carry):
    for i in range(num):
        carry = body(key, jnp.asarray(i, jnp.int32), carry)
    return carry


STAND_INS = (
    split, categorical, keys_of_rows, categorical_rows, choice_rows, bernoulli, bernoulli_rows, uniform_index,
    uniform_rows, ordered_subset, path_ranks, random_subset, moves_and_signs, normal, loop,
)  # fmt: skip


@contextmanager
def enumerated():
    """While a kernel is traced with a script, its draws are choices of the script."""
    with ExitStack() as stack:
        for stand_in in STAND_INS:
            stack.enter_context(mock.patch.object(randomness, stand_in.__name__, stand_in))
        yield


# ---- transition matrices


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
    with enumerated():
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

    with enumerated():
        return np.asarray(quick_jit(lambda stacked: jax.lax.map(rows, stacked))(stacked))


def stationary(log_probs):
    """Probabilities from unnormalised log-probabilities, over the last axis."""
    weights = np.exp(log_probs - np.max(log_probs, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
