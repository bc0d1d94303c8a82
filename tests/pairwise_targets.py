"""Small random Ising and Potts targets, as modules whose arrays are traced: one compilation serves all of a shape."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.samplers.parts.pairwise import Pairwise
from terrazzo.targets.pair_models import AbstractPairModel


class Pairs(AbstractPairModel):
    """Fields and couplings between equal values; knows its own terms."""

    fields: jax.Array
    couplings: jax.Array
    edges: tuple = eqx.field(static=True)

    def __call__(self, theta):
        edges = np.asarray(self.edges)
        is_equal = (theta[edges[:, 0]] == theta[edges[:, 1]]).astype(self.couplings.dtype)
        return self.fields[jnp.arange(len(theta)), theta].sum() + (self.couplings * is_equal).sum()

    def pairwise(self):
        return Pairwise(self.fields, np.asarray(self.edges, np.int32), self.couplings)


class HiddenPairs(eqx.Module):
    """The same function, its terms to be found."""

    inner: Pairs

    def __call__(self, theta):
        return self.inner(theta)


def pairs(num_sites, num_values, seed, *, is_positive=False):
    rng = np.random.default_rng(seed)
    edges = tuple((i, j) for i in range(num_sites) for j in range(i + 1, num_sites) if (i, j) != (0, 2))
    couplings = rng.normal(size=len(edges)) * 1.2
    couplings = np.abs(couplings) if is_positive else couplings
    return Pairs(jnp.asarray(rng.normal(size=(num_sites, num_values)) * 0.8), jnp.asarray(couplings), edges)


def pairwise_target(num_sites, num_values, seed=0, *, is_hidden=False, is_positive=None):
    is_positive = num_values > 2 if is_positive is None else is_positive
    fn = pairs(num_sites, num_values, seed, is_positive=is_positive)
    variable = tz.binary(num_sites) if num_values == 2 else tz.categorical(num_values, shape=num_sites)
    return tz.Target(HiddenPairs(fn) if is_hidden else fn, variable)


def stacked_pairs(target, num_targets=20):
    """The arrays of many targets of one shape."""
    d, k = target.log_prob_fn.fields.shape
    many = []
    for i in range(num_targets):
        fn = eqx.filter(pairs(d, k, 100 + i, is_positive=k > 2), eqx.is_array)
        many.append(eqx.tree_at(lambda t: t.log_prob_fn, eqx.filter(target, eqx.is_array), fn))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
