"""Tree-block Gibbs: forests without cycles that cover the graph, exact transition matrices, planted mistakes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from pairwise_targets import pairwise_target, stacked_pairs
from scripted import stationary, transition_matrices
from structured_models import MODELS
from terrazzo.errors import UnsupportedError
from terrazzo.samplers.kernels import tree_gibbs
from terrazzo.samplers.parts.forests import forest_cover, neighbours_of, rooted


def torus_edges(side):
    grid = np.arange(side * side).reshape(side, side)
    return np.concatenate([np.stack([grid.ravel(), np.roll(grid, -1, a).ravel()], axis=1) for a in (0, 1)])


@pytest.mark.parametrize("seed", range(6))
def test_forests_cover_the_graph_without_cycles(seed):
    rng = np.random.default_rng(seed)
    d = 30
    edges = (
        torus_edges(6) if seed == 0 else np.array([(i, j) for i in range(d) for j in range(i) if rng.random() < 0.1])
    )
    d = 36 if seed == 0 else d
    blocks = forest_cover(edges, d, 16)
    assert set(np.concatenate(blocks).tolist()) == set(range(d))
    for block in blocks:
        inside = np.isin(edges, block).all(axis=1)
        forest = rooted(edges, d, block)
        sites = forest.nodes[forest.nodes < d]
        assert sorted(sites.tolist()) == block.tolist()
        has_parent = (forest.parents < d) & (forest.nodes < d)
        assert has_parent.sum() == inside.sum()  # as many edges as links: no cycle is left out
        both = np.concatenate([edges, edges[:, ::-1]])
        ends = both[forest.links[has_parent]]
        assert (ends == np.stack([forest.nodes[has_parent], forest.parents[has_parent]], axis=1)).all()
        assert (both[forest.outer_links] == np.stack([forest.inner, forest.outer], axis=1)).all()
        assert len(forest.inner) == sum(not np.isin(j, block) for i in block for j, _ in neighbours_of(edges, d)[i])


def law_error(make, target, stacked):
    """The largest change of pi by one step, over many targets."""
    static = eqx.filter(target, eqx.is_array, inverse=True)
    states = jnp.asarray(target.space.enumerate())
    tables = jax.vmap(lambda p: jax.vmap(eqx.combine(p, static).log_prob)(states))(stacked)
    law = stationary(np.asarray(tables))
    found = transition_matrices(make, target, stacked)
    np.testing.assert_allclose(found.sum(axis=2), 1.0, atol=1e-10)
    return np.abs(np.einsum("ts,tsu->tu", law, found) - law).max()


@pytest.mark.parametrize(("num_sites", "num_values"), [(4, 2), (3, 3)])
def test_pi_is_invariant(num_sites, num_values):
    target = pairwise_target(num_sites, num_values)
    assert law_error(tree_gibbs.tree_gibbs, target, stacked_pairs(target, 5)) < 1e-11


def one(target):
    return jax.tree.map(lambda x: x[None], eqx.filter(target, eqx.is_array))


RING = np.random.default_rng(3).normal(size=(4, 2, 2))


def ring(theta):
    return jnp.asarray(RING)[np.arange(4), theta, jnp.roll(theta, 1)].sum()


@pytest.mark.parametrize("beta", [None, 0.4])
def test_tables_of_plain_functions(beta):
    """General tables, also where configurations are impossible, at another temperature."""
    plain = tz.Target(ring, tz.binary(4))
    hard = tz.Target(lambda t: ring(t) + jnp.where(t[0] & t[1] == 1, -jnp.inf, 0.0), tz.binary(4))
    for start in (plain, hard):
        blocks = tree_gibbs.prepare(start)["blocks"]
        assert all(len(f.nodes) > 1 for f in blocks.forests)
        target = start if beta is None else start.tempered(beta)
        assert law_error(lambda t, b=blocks: tree_gibbs.tree_gibbs(t, blocks=b), target, one(target)) < 1e-11


def forgotten_outside(unary, tables, forest, theta):
    return unary


def one_way(edges, num_sites, block):
    right = rooted(edges, num_sites, block)
    return right._replace(links=(right.links + len(edges)) % (2 * len(edges)))


@pytest.mark.parametrize(("name", "mutant"), [("gathered", forgotten_outside), ("rooted", one_way)])
def test_mutants_are_caught(name, mutant, monkeypatch):
    monkeypatch.setattr(tree_gibbs, name, mutant)
    target = tz.Target(ring, tz.binary(4))
    blocks = tree_gibbs.prepare(target)["blocks"]
    assert law_error(lambda t: tree_gibbs.tree_gibbs(t, blocks=blocks), target, one(target)) > 1e-3


def test_a_tree_is_drawn_independently():
    """On a tree one sweep forgets where it came from."""
    target = tz.Target(MODELS["hmm"][0], tz.categorical(3, shape=7))
    blocks = tree_gibbs.prepare(target)["blocks"]
    assert len(blocks.forests) == 1
    sampler = tree_gibbs.tree_gibbs(target, blocks=blocks)
    keys = jax.random.split(jax.random.key(0), 50)
    ends = [jax.vmap(lambda k, x=x: sampler.step(k, sampler.init(jnp.full(7, x, jnp.int32)))[0].position)(keys)
            for x in (0, 2)]  # fmt: skip
    assert (np.asarray(ends[0]) == np.asarray(ends[1])).all()


def test_what_it_does_not_take_is_said():
    with pytest.raises(UnsupportedError):
        tz.sample(MODELS["three_body"][0], tz.binary(7), seed=0, sampler="tree_gibbs", progress="off")
    dense = np.random.default_rng(0).normal(size=(30, 30))
    with pytest.raises(UnsupportedError, match="densely"):
        tree_gibbs.check(tz.Target(lambda t: t.astype(float) @ jnp.asarray(dense) @ t.astype(float), tz.binary(30)))
