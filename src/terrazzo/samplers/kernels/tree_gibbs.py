"""Tree-block Gibbs: all sites of an induced forest of the graph are redrawn jointly and exactly, given the rest.

For pair models log pi = sum_i h_i(theta_i) + sum_(i,j) f_ij(theta_i, theta_j): the sites outside the block add to the
fields inside, messages go from the leaves to the roots, and values are drawn from the roots to the leaves:

    m_i(x_p) = log sum_x exp(a_i(x) + f_ip(x, x_p)),    a_i = h_i + sum of f(., outside) + sum of children's m.

About two thirds of a lattice are redrawn at once, so that long correlations move where single sites do not.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import UnsupportedError
from terrazzo.samplers.kernels.gibbs import moved_info, positive_int, start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State
from terrazzo.samplers.parts.forests import Forest, forest_cover, rooted
from terrazzo.samplers.parts.pairwise import fields_of_base, pairwise_terms, untempered
from terrazzo.targets.interactions import evaluate, tolerance
from terrazzo.targets.reading import is_traced, structure_of
from terrazzo.targets.structure import PairTables
from terrazzo.targets.target import Target

MAX_BLOCKS = 8  # more forests than this to cover a graph: it is too dense to gain
MAX_ENTRIES = 2**22  # of all pair tables
NUM_CHECKED = 16  # configurations at which pair tables are compared with log pi


class TreeBlocks(eqx.Module):
    """A pair model and forests that cover its sites.

    Attributes:
        unary: h, shape (d, K); -inf at values that a site does not have.
        tables: f(other, own) of each directed edge, as listed and then the other way, shape (2 m, K, K).
        forests: The blocks.
    """

    unary: Float[Array, "dim value"]
    tables: Float[Array, "edge value value"]
    forests: tuple[Forest, ...]


def check(target: Target) -> None:
    """Raises unless the target is a pair model that few forests cover."""
    tree_blocks(target)


def prepare(target: Target, *, blocks: Any = None, **options: Any) -> dict[str, Any]:
    """Reads the pair tables and finds the forests on the host, once."""
    return {**options, "blocks": tree_blocks(target) if blocks is None else blocks}


def read_pairs(target: Target) -> PairTables | None:
    """Pair tables of a plain function, if they add up to log pi at random configurations."""
    structure = None if target.soft_level is not None else structure_of(untempered(target))
    pairs = None if structure is None or structure.is_whole else structure.pairs
    if pairs is None or 2 * pairs.tables.size > MAX_ENTRIES:
        return None
    theta = np.random.default_rng(0).integers(0, target.space.sizes, (NUM_CHECKED, target.space.num_dims))
    values = evaluate(untempered(target), theta)
    (i, j), num_edges = pairs.edges.T, len(pairs.edges)
    sums = pairs.constant + pairs.unary[np.arange(theta.shape[1]), theta].sum(axis=1)
    sums = sums + pairs.tables[np.arange(num_edges), theta[:, i], theta[:, j]].sum(axis=1)
    with np.errstate(invalid="ignore"):
        is_same = (np.isneginf(sums) & np.isneginf(values)) | (np.abs(sums - values) <= tolerance(values))
    return pairs if is_same.all() else None


def tree_blocks(target: Target) -> TreeBlocks:
    """The pair tables of a target and forests that cover it; raises `UnsupportedError` if there are none."""
    dtype = jnp.result_type(float)
    pairs = None if is_traced(target) else read_pairs(target)
    if pairs is not None:
        unary, edges, tables = jnp.asarray(pairs.unary, dtype), pairs.edges, jnp.asarray(pairs.tables, dtype)
    else:
        terms = pairwise_terms(target)
        unary, edges = jnp.asarray(terms.fields, dtype), np.asarray(terms.edges)
        tables = jnp.asarray(terms.couplings, dtype)[:, None, None] * jnp.eye(unary.shape[1], dtype=dtype)
    num_dims = target.space.num_dims
    cover = forest_cover(edges, num_dims, MAX_BLOCKS)
    if cover is None:
        raise UnsupportedError(
            "target", f"ties its sites too densely: more than {MAX_BLOCKS} forests", "use sampler='systematic_gibbs'"
        )
    both = jnp.concatenate([jnp.swapaxes(tables, 1, 2), tables])  # f(other, own)
    return TreeBlocks(unary, both, tuple(rooted(edges, num_dims, block) for block in cover))


def tree_gibbs(target: Target, *, num_sweeps: int = 1, blocks: TreeBlocks | None = None) -> SamplingAlgorithm:
    """Gibbs sweeps over induced forests, each redrawn jointly.

    Args:
        target: A target whose terms have at most two sites.
        num_sweeps: Sweeps over all forests a step.
        blocks: Pair tables and forests, untempered, as `prepare` finds them.

    Returns:
        The sampler. One evaluation a step, for log pi itself.

    Reference: Hamze & de Freitas (2004), From fields to trees.

    >>> import terrazzo as tz
    >>> ring = tz.Target(lambda t: 0.5 * (t == jnp.roll(t, 1)).sum().astype(float), tz.categorical(3, shape=6))
    >>> sampler = tree_gibbs(ring)
    >>> _, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(6, jnp.int32)))
    >>> int(info.num_evaluations)
    1
    """
    num_sweeps = positive_int("num_sweeps", num_sweeps)
    found = tree_blocks(target) if blocks is None else blocks
    of_base = fields_of_base(target)

    def sweep(key: randomness.Key, _: Any, theta: Int[Array, " dim"]) -> Int[Array, " dim"]:
        unary, tables = target.tempered_values(found.unary, of_base), target.tempered_values(found.tables, None)
        for forest, part in zip(found.forests, randomness.split(key, len(found.forests)), strict=True):
            theta = redraw_forest(part, unary, tables, forest, theta)
        return theta

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        position = randomness.loop(rng_key, num_sweeps, sweep, state.position)
        new = State(position, target.log_prob(position))
        return new, moved_info(state, new, 1)

    return SamplingAlgorithm(start(target), step)


def redraw_forest(
    key: randomness.Key,
    unary: Float[Array, "dim value"],
    tables: Float[Array, "edge value value"],
    forest: Forest,
    theta: Int[Array, " dim"],
) -> Int[Array, " dim"]:
    """The sites of one forest redrawn jointly, given the others."""
    nodes, parents, links = (jnp.asarray(x) for x in forest[:3])
    num_levels, num_dims = nodes.shape[0], theta.shape[0]
    fields = gathered(unary, tables, forest, theta)
    fields = jnp.concatenate([fields, jnp.zeros_like(fields[:1])])  # a last row for what is no site

    def up(number: Array, fields: Array) -> Array:
        level = num_levels - 1 - number
        own = fields[nodes[level]]
        message = jax.nn.logsumexp(tables[links[level]] + own[:, None, :], axis=2)
        return fields.at[parents[level]].add(message).at[num_dims].set(0.0)

    def down(part: randomness.Key, level: Array, theta: Array) -> Array:
        above = jnp.where((parents[level] < num_dims)[:, None], tables[links[level], theta[parents[level]]], 0.0)
        logits = fields[nodes[level]] + above
        is_value = jnp.concatenate([unary > -jnp.inf, jnp.ones_like(unary[:1], bool)])[nodes[level]]
        return theta.at[nodes[level]].set(randomness.categorical_rows(part, logits, is_value))

    if num_levels > 1 and tables.shape[0]:
        fields = jax.lax.fori_loop(0, num_levels - 1, up, fields)
    padded = jnp.concatenate([theta, jnp.zeros(1, theta.dtype)])
    if not tables.shape[0]:
        tables = jnp.zeros((1, unary.shape[1], unary.shape[1]), unary.dtype)
    return randomness.loop(key, num_levels, down, padded)[:num_dims]


def gathered(
    unary: Float[Array, "dim value"], tables: Float[Array, "edge value value"], forest: Forest, theta: Array
) -> Float[Array, "dim value"]:
    """The fields, with what the sites outside the forest add to those inside."""
    if not len(forest.inner):
        return unary
    return unary.at[jnp.asarray(forest.inner)].add(tables[jnp.asarray(forest.outer_links), theta[forest.outer]])
