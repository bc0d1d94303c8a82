"""Running conditionals: they are the conditionals of log pi, and Gibbs by them draws what Gibbs without them draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import terrazzo as tz
from small_targets import small_target
from terrazzo import problems
from terrazzo.auto.candidates import candidates, exploring_kernel
from terrazzo.errors import TargetError
from terrazzo.samplers.kernels.gibbs import gibbs
from terrazzo.samplers.parts.ratios import moves_of, neighbour_log_probs
from terrazzo.targets.conditioning import condition
from terrazzo.targets.running_conditionals import AbstractRunningConditionals

NUM_CHAINS = 64


class Recomputed(AbstractRunningConditionals):
    """For any target: the tables are the configuration itself."""

    target: tz.Target
    is_stale: bool = eqx.field(static=True, default=False)

    def start(self, theta: Array) -> Array:
        return theta

    def logits(self, tables: Array, theta: Array) -> Array:
        return self.target.all_site_logits(tables)

    def moved(self, tables: Array, theta: Array, i: Array, value: Array) -> Array:
        return tables if self.is_stale else theta.at[i].set(value)


def with_running(target, running):
    return eqx.tree_at(lambda t: t.running, target, running, is_leaf=lambda x: x is None)


def without_running(target):
    return with_running(target, None)


def selection(noise=60.0, num_features=12):
    return problems.variable_selection(num_features, 4, noise=noise, seed=3).target


def mixed():
    """Coordinates of different sizes, some configurations impossible."""
    target = small_target("mixed")
    return with_running(target, Recomputed(target))


@pytest.mark.parametrize("noise", [0.0, 60.0])
def test_selection_keeps_the_conditionals_up(noise):
    """After many changes the swept matrix still gives the differences of log pi."""
    target = selection(noise, 30)
    log_prob = eqx.filter_jit(target.log_prob)
    step = eqx.filter_jit(target.running.moved)
    rng = np.random.default_rng(0)
    theta = jnp.asarray(rng.integers(0, 2, 30), jnp.int32)
    tables = target.running.start(theta)
    for i in rng.integers(0, 30, 60):
        i = jnp.asarray(i, jnp.int32)
        tables = step(tables, theta, i, 1 - theta[i])
        theta = theta.at[i].set(1 - theta[i])
    fresh = target.running.start(theta)
    for kept, new in zip(tables, fresh, strict=True):
        assert np.allclose(kept, new, rtol=1e-6, atol=1e-9 * np.abs(new).max())
    logits = np.asarray(target.running_logits(tables, theta))
    here = log_prob(theta)
    for i in range(30):
        difference = float(log_prob(theta.at[i].set(1 - theta[i])) - here)
        assert logits[i, int(theta[i])] == 0.0
        assert np.isclose(logits[i, 1 - int(theta[i])], difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{"scan": "systematic", "num_updates": 2}, {"scan": "random", "num_updates": 30}])
@pytest.mark.parametrize("make", [selection, mixed, lambda: selection().tempered(0.2)])
def test_gibbs_draws_the_same_with_and_without(make, options):
    """The same keys give the same configurations: jumping ahead to the next change leaves nothing out."""
    target = make()
    plain = without_running(target)
    keys = jax.random.split(jax.random.key(1), NUM_CHAINS)
    starts = plain.possible_starts(jax.random.key(2), NUM_CHAINS)
    ends, log_probs = [], []
    for one in (target, plain):
        sampler = gibbs(one, **options)
        states, _ = jax.jit(jax.vmap(lambda k, x, s=sampler: s.step(k, s.init(x))))(keys, starts)
        ends.append(np.asarray(states.position))
        log_probs.append(np.asarray(states.log_prob))
    assert (ends[0] == ends[1]).all()
    assert (ends[0] != np.asarray(starts)).any(axis=1).mean() > 0.9
    assert np.allclose(log_probs[0], log_probs[1])


def test_tables_that_are_not_kept_up_are_seen():
    """A planted mutant: the comparison above notices tables that forget a change."""
    target = small_target("mixed")
    stale = gibbs(with_running(target, Recomputed(target, is_stale=True)), scan="systematic", num_updates=2)
    plain = gibbs(target, scan="systematic", num_updates=2)
    keys = jax.random.split(jax.random.key(1), NUM_CHAINS)
    starts = target.possible_starts(jax.random.key(2), NUM_CHAINS)
    ends = [jax.jit(jax.vmap(lambda k, x, s=s: s.step(k, s.init(x))[0].position))(keys, starts) for s in (stale, plain)]
    assert (np.asarray(ends[0]) != np.asarray(ends[1])).any()


@pytest.mark.parametrize(
    ("running", "message"),
    [
        (lambda target: Recomputed(target, is_stale=True), "after a change of one site.*check moved"),
        (lambda target: Recomputed(target.tempered(0.5)), "from the start.*check start and logits"),
    ],
)
def test_wrong_tables_are_found_before_anything_long_starts(running, message):
    """A target is probed when it is built."""
    target = small_target("mixed")
    right = tz.Target(target.log_prob_fn, target.space, running_conditionals=Recomputed(target))
    assert right.running is not None
    with pytest.raises(TargetError, match="(?s)running_conditionals.*" + message):
        tz.Target(target.log_prob_fn, target.space, running_conditionals=running(target))


def test_neighbours_are_those_of_log_prob():
    """Informed proposals get the log-probabilities of all neighbours from the tables."""
    target = selection()
    moves = moves_of(target.space, None)
    theta = jnp.asarray(np.arange(12) % 2, jnp.int32)
    found = eqx.filter_jit(lambda t, theta: neighbour_log_probs(t, moves, theta, t.log_prob(theta)))
    cheap, exact = (found(t, theta) for t in (target, without_running(target)))
    assert np.allclose(cheap, exact, rtol=1e-9)


def test_clamped_targets_keep_them():
    """The free coordinates of a conditioned target have the conditionals of the whole one."""
    reduced = condition(selection(), {0: 1, 5: 0, 7: 1})
    theta = jnp.asarray([1, 0, 1, 1, 0, 0, 0, 1, 0], jnp.int32)

    @eqx.filter_jit
    def both(target, theta):
        tables = target.running.moved(target.running.start(theta), theta, jnp.asarray(4), jnp.asarray(1))
        theta = theta.at[4].set(1)
        return target.running_logits(tables, theta), without_running(target).all_site_logits(theta)

    ours, exact = both(reduced, theta)
    assert np.allclose(ours[:, 1] - ours[:, 0], exact[:, 1] - exact[:, 0], rtol=1e-9)


def test_the_default_sampler_uses_them():
    """Steps of many updates are what running conditionals make cheap."""
    target = selection()
    assert candidates(target)[0].name == "systematic_gibbs"
    assert exploring_kernel(target)[1] == {"num_updates": 3}
    plain = without_running(selection(num_features=30))  # a determinant: nothing can be read
    assert candidates(plain)[0].name == "gibbs"
    assert exploring_kernel(plain)[1] == {}
    plain = tz.Target(lambda t: jnp.sum(t.astype(float)), tz.binary(6))  # its gradient is cheap
    running = with_running(plain, Recomputed(plain))
    assert [c.name for c in candidates(running)] == ["systematic_gibbs"]
    assert [c.name for c in candidates(plain)] == ["coloured_gibbs", "discrete_langevin"]
