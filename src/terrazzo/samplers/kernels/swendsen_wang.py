"""Swendsen-Wang cluster moves for Ising and Potts targets with fields.

With log pi = sum_i h_i(theta_i) + sum_e J_e [equal along e], open each satisfied edge with probability
1 - exp(-|J_e|) (J_e > 0 is satisfied by equal values, J_e < 0 by different ones), then give each cluster of open edges
a new state by its fields alone. For two values the cluster is flipped or not, which keeps its inner contrasts, so that
couplings of both signs are exact; for more than two values all couplings must be positive and a cluster gets one value:

    P(cluster = k) prop. to exp(sum_{i in cluster} h_i(k)).

Without fields all states are equally likely, and nothing is summed over clusters.

Clusters are found by lowering labels to those of open neighbours, and those of the labels' own roots with them, with
pointer jumping: a few rounds under `jit`, no union-find on the host. They are found when no open edge joins two labels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import UnsupportedError
from terrazzo.samplers.kernels.gibbs import moved_info, start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State
from terrazzo.samplers.parts.batching import one_by_one_on_cpu
from terrazzo.samplers.parts.pairwise import Pairwise, checked_terms, inverse_temperature, pairwise_terms
from terrazzo.targets.target import Target

MOST_PADDING = 4  # times the ends of all edges
ROUNDS, JUMPS = 4, 2  # before the first look at whether an open edge joins two labels, and of pointers in each round:
# at their critical points the last of 64 lattices of 24 x 24 sites is done after four rounds, of 64 x 64 after six


def check(target: Target) -> None:
    """Raises unless the target is pairwise, and ferromagnetic if it has more than two values."""
    _check_signs(target, pairwise_terms(target).couplings)


def prepare(target: Target, *, terms: Any = None, **options: Any) -> dict[str, Any]:
    """Finds and verifies the terms on the host, once, so that the factory can be called inside compiled code."""
    found = checked_terms(target, terms)
    near = neighbours(found.edges, target.space.num_dims)
    return {**options, "terms": found, "neighbours": near, "has_fields": _has_fields(found)}


def _check_signs(target: Target, couplings: Any) -> None:
    if target.space.is_binary or isinstance(couplings, jax.core.Tracer):
        return
    if (np.asarray(couplings) < 0).any():
        raise UnsupportedError("target", "has negative couplings and more than two values", "use gibbs instead")


def _has_fields(terms: Pairwise) -> bool:
    """Whether some site favours a value; also where that cannot be known inside compiled code."""
    return isinstance(terms.fields, jax.core.Tracer) or bool(np.ptp(np.asarray(terms.fields), axis=1).any())


class Neighbours(NamedTuple):
    """The edges of a graph by site, padded with the site itself.

    Attributes:
        sites: The neighbours of each site, (dim, degree).
        edges: The number of the edge to each, (dim, degree).
    """

    sites: Any
    edges: Any


def neighbours(edges: Any, num_sites: int) -> Neighbours | None:
    """The edges by site; None where a few sites have so many that the table would be mostly padding.

    >>> neighbours(np.array([[0, 1], [1, 2]]), 3).sites.tolist()
    [[1, 0], [0, 2], [1, 2]]
    """
    edges = np.asarray(edges)
    ends, others = edges.ravel(), edges[:, ::-1].ravel()
    order = np.argsort(ends, kind="stable")
    counts = np.bincount(ends, minlength=num_sites)
    degree = int(counts.max(initial=1))
    if num_sites * degree > MOST_PADDING * max(len(ends), num_sites):
        return None
    places = np.arange(len(ends)) - np.repeat(np.cumsum(counts) - counts, counts)
    sites = np.tile(np.arange(num_sites, dtype=np.int32)[:, None], (1, degree))
    numbers = np.zeros((num_sites, degree), np.int32)
    sites[ends[order], places] = others[order]
    numbers[ends[order], places] = order // 2
    return Neighbours(sites, numbers)


def clusters(
    edges: Any, is_open: Bool[Array, " edge"], num_sites: int, table: Neighbours | None = None
) -> Int[Array, " dim"]:
    """The smallest site of each site's cluster of open edges.

    Args:
        edges: Pairs of sites, (edge, 2).
        is_open: Which of them are open.
        num_sites: How many sites there are.
        table: The edges by site. With it a site looks at its neighbours, and only the labels' roots are written to by
            others: twice as fast as writing along every edge (64 x 64 sites, half of the edges open, two cores).

    >>> clusters(np.array([[0, 1], [1, 2], [3, 4]]), jnp.array([True, True, False]), 5).tolist()
    [0, 0, 0, 3, 4]
    """
    if table is None:
        first, second = (jnp.where(is_open, jnp.asarray(edges)[:, k], 0).astype(jnp.int32) for k in (0, 1))
        return _labels_by_edges(jnp.arange(num_sites, dtype=jnp.int32), first, second)
    sites = jnp.arange(num_sites, dtype=jnp.int32)
    return _labels_by_sites(jnp.where(is_open[jnp.asarray(table.edges)], jnp.asarray(table.sites), sites[:, None]))


@one_by_one_on_cpu
def _labels_by_sites(near: Int[Array, "dim degree"]) -> Int[Array, " dim"]:
    """The smallest site of each cluster, from the neighbours to which edges are open (else the site itself)."""

    def lowered(labels: Array) -> Array:
        low = jnp.minimum(labels, labels[near].min(axis=1))
        return jnp.minimum(low, labels.at[labels].min(low))

    sites = jnp.arange(near.shape[0], dtype=jnp.int32)
    return _until_even(sites, lowered, lambda labels: jnp.any(labels[near] != labels[:, None]))


@one_by_one_on_cpu
def _labels_by_edges(sites: Array, i: Int[Array, " edge"], j: Int[Array, " edge"]) -> Int[Array, " dim"]:
    """The same from the ends of the edges; a closed one joins a site to itself."""

    def lowered(labels: Array) -> Array:
        low = jnp.minimum(labels[i], labels[j])
        return labels.at[labels[i]].min(low).at[labels[j]].min(low).at[i].min(low).at[j].min(low)

    return _until_even(sites, lowered, lambda labels: jnp.any(labels[i] != labels[j]))


def _until_even(labels: Array, lowered: Callable[[Array], Array], is_uneven: Callable[[Array], Array]) -> Array:
    """Labels after so many rounds that no open edge joins two of them."""

    def lower(labels: Array) -> Array:
        labels = lowered(labels)
        for _ in range(JUMPS):
            labels = labels[labels]
        return labels

    def again(carry: tuple) -> tuple:
        labels = lower(carry[0])
        return labels, is_uneven(labels)

    for _ in range(ROUNDS):
        labels = lower(labels)
    return jax.lax.while_loop(lambda carry: carry[1], again, (labels, is_uneven(labels)))[0]


def log_bond_probability(couplings: Float[Array, " edge"]) -> Float[Array, " edge"]:
    """The log-probability that a satisfied edge is open, log(1 - exp(-|J|))."""
    return randomness.log1mexp(-jnp.abs(couplings))


def satisfied(theta: Int[Array, " dim"], edges: Any, couplings: Float[Array, " edge"]) -> Bool[Array, " edge"]:
    """Equal values along edges with J > 0, different ones along the others."""
    return (theta[edges[:, 0]] == theta[edges[:, 1]]) == (couplings > 0)


def cluster_sums(labels: Int[Array, " dim"], values: Float[Array, "dim ..."]) -> Float[Array, "dim ..."]:
    """The sum of `values` over each cluster, at the place of its label."""
    return jnp.zeros_like(values).at[labels].add(values)


def swendsen_wang(
    target: Target,
    *,
    terms: Pairwise | None = None,
    neighbours: Neighbours | None = None,
    has_fields: bool | None = None,
) -> SamplingAlgorithm:
    """Swendsen-Wang for a pairwise target; nothing to tune.

    Args:
        target: An Ising or Potts target, with fields if need be.
        terms: Its fields and couplings; found and verified if None.
        neighbours: The edges of the terms by site, which finds clusters faster.
        has_fields: Whether there are fields; by default looked up in the terms.

    Returns:
        The sampler. One evaluation a step, for log pi itself.

    Reference: Swendsen & Wang (1987), Nonuniversal critical dynamics in Monte Carlo simulations, PRL 58.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda s: 2.0 * s[0] * s[1] - s.sum(), tz.binary(2))
    >>> sampler = swendsen_wang(target)
    >>> _, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(2, jnp.int32)))
    >>> float(info.acceptance_rate)
    1.0
    """
    terms = pairwise_terms(target) if terms is None else terms
    _check_signs(target, terms.couplings)
    has_fields = _has_fields(terms) if has_fields is None else has_fields
    beta = inverse_temperature(target)
    edges, num_dims = terms.edges, target.space.num_dims
    couplings = beta * jnp.asarray(terms.couplings).astype(beta.dtype)
    fields = beta * jnp.asarray(terms.fields).astype(beta.dtype)
    if (base := target.base) is not None:
        fields, has_fields = fields + (1 - beta) * base.terms.fields, has_fields or base.has_fields
        couplings = couplings + (1 - beta) * base.terms.couplings if base.has_edges else couplings
    log_open = log_bond_probability(couplings)

    def gains(theta: Int[Array, " dim"]) -> Float[Array, " dim"]:
        sites = jnp.arange(num_dims)
        return fields[sites, 1 - theta] - fields[sites, theta]

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        bond_key, value_key = randomness.split(rng_key, 2)
        theta = state.position
        is_open = satisfied(theta, edges, couplings) & randomness.bernoulli_rows(bond_key, log_open)
        labels = clusters(edges, is_open, num_dims, neighbours)
        if target.space.is_binary:
            log_half = jnp.full(num_dims, jax.nn.log_sigmoid(jnp.zeros((), fields.dtype)))
            log_rates = jax.nn.log_sigmoid(cluster_sums(labels, gains(theta))) if has_fields else log_half
            position = jnp.where(randomness.bernoulli_rows(value_key, log_rates)[labels], 1 - theta, theta)
        elif has_fields:
            position = randomness.categorical_rows(value_key, cluster_sums(labels, fields))[labels]
        else:
            position = randomness.uniform_rows(value_key, target.space.sizes)[labels]
        new = State(position, target.log_prob(position))
        return new, moved_info(state, new, 1)

    return SamplingAlgorithm(start(target), step)
