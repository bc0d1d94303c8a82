"""What the default sampler tries on plain functions whose terms were read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo import samplers
from terrazzo.auto.candidates import alone, candidates, exploring_kernel

SIGNS = np.where(np.random.default_rng(0).random((2, 24, 24)) < 0.5, -1.0, 1.0)


def lattice(signs=1.0, field=0.0):
    def log_prob(theta):
        s = (2 * theta - 1).reshape(24, 24).astype(float)
        bonds = jnp.stack([s * jnp.roll(s, 1, 0), s * jnp.roll(s, 1, 1)])
        return 0.4 * (signs * bonds).sum() + field * s.sum()

    return tz.Target(log_prob, tz.binary(576))


def potts(sign):
    def log_prob(theta):
        grid = theta.reshape(12, 12)
        return sign * 1.4 * ((grid == jnp.roll(grid, 1, 0)).sum() + (grid == jnp.roll(grid, 1, 1)).sum()).astype(float)

    return tz.Target(log_prob, tz.categorical(10, shape=144))


@pytest.mark.parametrize(
    ("target", "names", "exploring"),
    [
        (lattice(), ["swendsen_wang", "coloured_gibbs", "tree_gibbs", "discrete_langevin"], "swendsen_wang"),
        (lattice(field=0.1), ["swendsen_wang", "coloured_gibbs", "tree_gibbs", "discrete_langevin"], "coloured_gibbs"),
        (lattice(SIGNS), ["coloured_gibbs", "tree_gibbs", "discrete_langevin"], "coloured_gibbs"),
        (potts(1.0), ["swendsen_wang", "coloured_gibbs", "tree_gibbs"], "swendsen_wang"),
        (potts(-1.0), ["coloured_gibbs", "tree_gibbs"], "coloured_gibbs"),
    ],
    ids=["ferromagnet", "in a field", "spin glass", "potts", "repulsive potts"],
)
def test_clusters_and_trees_are_tried_where_they_suit(target, names, exploring):
    assert [local.name for local in candidates(target)] == names
    assert exploring_kernel(target)[0] == exploring
    hinted = tz.Target(target.log_prob_fn, target.space, colours=np.indices((24, 24)).sum(axis=0).ravel() % 2) if len(
        target.space.sizes) == 576 else None  # fmt: skip
    if hinted is not None:
        assert "tree_gibbs" not in [local.name for local in candidates(hinted)]


def test_a_lone_sweep_is_the_step_itself():
    """The hybrid puts no loop around it, and draws what the kernel of that name draws."""
    target = tz.Target(lambda s: 0.4 * (s[1:] == s[:-1]).astype(float).sum(), tz.binary(6))
    local = candidates(target)[0]
    assert (local.name, local.moves) == ("swendsen_wang", 1)
    lone = samplers.hybrid.factory(target, None, **alone(local, 1).options)
    own = samplers.swendsen_wang.factory(target, **local.options)
    start = own.init(jnp.zeros(6, jnp.int32), jax.random.key(1))
    new, info = jax.jit(lone.step)(jax.random.key(0), start)
    assert (new.position == own.step(jax.random.key(0), start)[0].position).all()
    assert int(info.num_evaluations) == 1


def test_sampling_by_name_and_inside_a_ladder():
    target = lattice()
    for sampler in ("tree_gibbs", tz.samplers.parallel_tempering(num_temperatures=3, kernel=tz.samplers.tree_gibbs)):
        result = tz.sample(target, seed=0, sampler=sampler, chains=2, draws=10, warmup=10, progress="off")
        assert np.isfinite(result.log_prob).all()
