"""Every kernel on mixed spaces leaves the joint law of theta and the reals invariant.

Exact starts: theta enumerated, the reals drawn from their known conditionals. One step. Then a chi-square test over all
cells of theta and of the quantiles of the reals given theta, at a false-alarm rate of 1e-6. With 20,000 starts and 72
cells it sees errors of about 5 % of a cell. Planted mistakes must be seen.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from terrazzo.samplers import MIXED
from terrazzo.samplers.kernels import blocked as blocked_module
from terrazzo.samplers.kernels.collapsed import find_summation
from terrazzo.samplers.parts.references import FittedReference, UserReference
from terrazzo.spaces import Configuration
from terrazzo.targets.mixed import of_reference

ALPHA, NUM_STARTS = 1e-6, 20_000
SPACE = tz.Space(k=tz.categorical(3), x=tz.real(), b=tz.binary(), s=tz.real(low=0.5))
LOGITS = np.array([[0.2, -0.4], [0.9, 0.3], [-0.5, 0.1]])
MEANS = np.array([[-1.0, 0.3], [0.8, 1.5], [0.0, -0.6]])
SCALES = np.array([[0.6, 1.2], [0.9, 0.5], [1.5, 0.8]])
RATES = np.array([1.0, 3.0])  # of s - 0.5, exponential, given b
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum()


def _log_prob(v):
    k, b = v["k"], v["b"]
    x = (v["x"] - jnp.asarray(MEANS)[k, b]) / jnp.asarray(SCALES)[k, b]
    rate = jnp.asarray(RATES)[b]
    normal = -0.5 * x**2 - jnp.log(jnp.asarray(SCALES)[k, b])
    return jnp.asarray(LOGITS)[k, b] + normal + jnp.log(rate) - rate * (v["s"] - 0.5)


@pytest.fixture(scope="module")
def target():
    return tz.Target(_log_prob, SPACE)


def _starts(rng):
    cells = rng.choice(6, NUM_STARTS, p=PROBABILITIES.ravel())
    k, b = np.divmod(cells, 2)
    x = rng.normal(MEANS[k, b], SCALES[k, b])
    s = rng.exponential(1 / RATES[b])
    return Configuration(jnp.asarray(np.stack([k, b], 1), jnp.int32), jnp.asarray(np.stack([x, np.log(s)], 1)))


def _p_value(sampler, *, seed=0, thin=1, begin=None):
    start = _starts(np.random.default_rng(seed))

    @jax.jit
    @jax.vmap
    def moved(key, theta, y):
        state = sampler.init(Configuration(theta, y), key)
        state = state if begin is None else begin(jax.random.fold_in(key, 1), state)
        for part in jax.random.split(key, thin):
            state, _ = sampler.step(part, state)
        return state.position, state.reals

    theta, y = map(np.asarray, moved(jax.random.split(jax.random.key(seed), NUM_STARTS), *start))
    k, b = theta.T
    by_x = np.minimum((4 * stats.norm.cdf(y[:, 0], MEANS[k, b], SCALES[k, b])).astype(int), 3)
    by_s = np.minimum((3 * stats.expon.cdf(np.exp(y[:, 1]), scale=1 / RATES[b])).astype(int), 2)
    counts = np.bincount(((2 * k + b) * 4 + by_x) * 3 + by_s, minlength=72)
    expected = NUM_STARTS * np.repeat(PROBABILITIES.ravel(), 12) / 12
    return stats.chisquare(counts, expected).pvalue


OPTIONS = {"scale": 0.7, "inverse_mass_matrix": np.array([1.0, 1.5])}
KERNELS = {
    "nuts": ("blocked", {"discrete": "systematic_gibbs", "real": "nuts", "max_doublings": 3}),
    "hmc": ("blocked", {"discrete": "metropolis", "real": "hmc"}),
    "mala": ("blocked", {"discrete": tz.samplers.gibbs(num_updates=2), "real": "mala"}),
    "random walk": ("blocked", {"discrete": "locally_balanced", "real": "random_walk"}),
    "collapsed": ("collapsed", {"max_doublings": 3}),
}


def _built(target, name):
    kind, options = KERNELS[name]
    spec = MIXED[kind]
    return spec.factory(target, **OPTIONS, **spec.prepare(target, **options))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_leave_the_joint_law_invariant(target, name):
    assert _p_value(_built(target, name)) > ALPHA


REFERENCE = FittedReference(
    jnp.array([0.2, -0.5]), jnp.array([1.5, 1.2]), jnp.log(jnp.array([[0.5, 0.3, 0.2], [0.4, 0.6, 0.0]]))
)


def _ladder(target, *, is_collapsed, reference=None):
    """Two replicas, the hot one drawn from the reference: with exact cold starts their joint law is known."""
    q0 = eqx.tree_at(lambda r: r.log_probs, REFERENCE, jnp.zeros((0, 3))) if is_collapsed else REFERENCE
    q0 = q0 if reference is None else reference(q0)
    plan = find_summation(target) if is_collapsed else None
    sampler = MIXED["tempered"].factory(
        target, reference=q0, inverse_temperatures=np.array([0.0, 1.0]), scales=np.array([0.3, 0.3]), summation=plan
    )

    def begin(key, state):
        theta, y = q0.draw(key)
        theta = state.position if is_collapsed else theta
        return state._replace(thetas=state.thetas.at[0].set(theta), ys=state.ys.at[0].set(y))

    return sampler, begin


@pytest.mark.parametrize("is_collapsed", [False, True])
def test_ladders_leave_the_law_of_their_cold_end_invariant(target, is_collapsed):
    sampler, begin = _ladder(target, is_collapsed=is_collapsed)
    assert _p_value(sampler, thin=2, begin=begin) > ALPHA


def _prior_log_prob(v):
    x, s = v["x"], v["s"] - 0.5
    sites = jnp.log(jnp.asarray([0.2, 0.5, 0.3]))[v["k"]] + jnp.log(jnp.asarray([0.3, 0.7]))[v["b"]]
    rate = jnp.asarray([0.5, 1.5])[v["b"]]
    return sites + jax.scipy.stats.norm.logpdf(x, 0.0, 2.0) + jnp.log(rate) - rate * s


def _prior_draw(key):
    keys = jax.random.split(key, 4)
    b = jax.random.bernoulli(keys[1], 0.7).astype(jnp.int32)
    return {
        "k": jax.random.categorical(keys[0], jnp.log(jnp.asarray([0.2, 0.5, 0.3]))),
        "b": b,
        "x": 2.0 * jax.random.normal(keys[2]),
        "s": 0.5 + jax.random.exponential(keys[3]) / jnp.asarray([0.5, 1.5])[b],
    }


def _users_ladder(*, is_collapsed):
    """A ladder from a reference that ties s to b: summed over theta, its density of s is a mixture."""
    target = tz.Target(_log_prob, SPACE, reference=tz.Reference(_prior_log_prob, _prior_draw))
    plans = [find_summation(t) if is_collapsed else None for t in (target, of_reference(target))]
    assert not is_collapsed or None not in plans
    return _ladder(target, is_collapsed=is_collapsed, reference=lambda _: UserReference(target, plans[1]))


@pytest.mark.parametrize("is_collapsed", [False, True])
def test_ladders_from_the_users_reference_leave_the_law_of_their_cold_end_invariant(is_collapsed):
    sampler, begin = _users_ladder(is_collapsed=is_collapsed)
    assert _p_value(sampler, thin=2, begin=begin) > ALPHA


def test_a_reference_that_is_not_summed_where_the_target_is_is_seen(monkeypatch):
    """The density of the reals at one theta in place of that of all."""
    wrong = lambda self, theta, y: self.prior.log_density(jnp.zeros(2, jnp.int32), y)
    monkeypatch.setattr(UserReference, "log_density", wrong)
    sampler, begin = _users_ladder(is_collapsed=True)
    assert _p_value(sampler, thin=2, begin=begin) < ALPHA


def test_swaps_by_a_wrong_reference_are_seen(target):
    class Shifted(FittedReference):
        def draw(self, key):
            theta, y = super().draw(key)
            return theta, y + 1.0

    wrong = lambda q0: Shifted(q0.mean, q0.sd, q0.log_probs)
    sampler, begin = _ladder(target, is_collapsed=False, reference=wrong)
    assert _p_value(sampler, thin=2, begin=begin) < ALPHA


def test_coloured_sweeps_hold_at_all_reals():
    """A mixture: labels are independent given the reals, and are redrawn together from conditionals read as terms."""
    data = np.array([-1.0, 0.2, 0.5, 2.0])

    def log_prob(v):
        return jnp.sum(-0.5 * (jnp.asarray(data) - v["m"][v["z"]]) ** 2) - 0.5 * jnp.sum(v["m"] ** 2)

    mixture = tz.Target(log_prob, tz.Space(z=tz.categorical(3, shape=4), m=tz.real(3)))
    _, (conditionals,) = blocked_module.read_colours(mixture)
    rng = np.random.default_rng(0)
    for _ in range(3):
        theta, y = jnp.asarray(rng.integers(0, 3, 4), jnp.int32), jnp.asarray(rng.normal(size=3) * 3)
        logits = dataclasses.replace(conditionals, data=y).logits(theta)
        exact = mixture.given(y).all_site_logits(theta)
        np.testing.assert_allclose(jax.nn.log_softmax(logits), jax.nn.log_softmax(exact), atol=1e-9)


def test_the_sum_over_discrete_variables_is_that_of_all_configurations():
    """A hidden Markov chain with a term of three sites: the sum, its gradient, and draws given the reals."""

    def log_prob(v):
        z, m = v["z"], v["m"]
        pairs = jnp.sum(m[z[1:]] * jnp.where(z[1:] == z[:-1], 1.0, -0.5))
        return pairs + jnp.sum(m[z]) * 0.3 + m[0] * jnp.where((z[0] == z[2]) & (z[4] == 1), 1.0, 0.0) - jnp.sum(m**2)

    target = tz.Target(log_prob, tz.Space(z=tz.categorical(2, shape=6), m=tz.real(2)))
    plan, states = find_summation(target), jnp.asarray(target.space.discrete.enumerate())
    assert plan is not None
    y = jnp.array([0.7, -1.1])
    brute = lambda y: jax.nn.logsumexp(jax.vmap(lambda t: target.log_prob_of(t, y))(states))
    np.testing.assert_allclose(plan(y), brute(y), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(plan)(y), jax.grad(brute)(y), rtol=1e-9)
    tables = plan.forward(y)[1]
    drawn = jax.jit(jax.vmap(lambda key: plan.backward(key, tables)))(jax.random.split(jax.random.key(0), 20_000))
    counts = np.bincount(np.asarray(target.space.discrete.index(drawn)), minlength=64)
    expected = 20_000 * np.asarray(jax.nn.softmax(jax.vmap(lambda t: target.log_prob_of(t, y))(states)))
    assert stats.chisquare(counts, expected).pvalue > ALPHA


# ---- mistakes that must be seen


def test_a_forgotten_jacobian_is_seen(target, monkeypatch):
    monkeypatch.setattr(tz.Space, "log_jacobian", lambda self, y: jnp.zeros((), y.dtype))
    assert _p_value(_built(target, "mala"), thin=3) < ALPHA


def test_a_gradient_at_the_wrong_theta_is_seen(target, monkeypatch):
    """The reals move at the theta before the discrete move, and the state has the one after it."""
    density = tz.Target.log_density
    shifted = lambda self, theta, y: density(self, (theta + 1) % jnp.asarray(self.space.sizes), y)
    monkeypatch.setattr(tz.Target, "log_density", shifted)
    assert _p_value(_built(target, "hmc")) < ALPHA


def test_a_collapsed_sum_without_a_term_is_seen(target):
    plan = find_summation(target)
    groups = [group._replace(pulls=group.pulls[1:]) for group in plan.groups[:1]] + plan.groups[1:]
    broken = dataclasses.replace(plan, groups=groups)
    assert _p_value(MIXED["collapsed"].factory(target, **OPTIONS, max_doublings=3, summation=broken)) < ALPHA


def test_theta_that_is_not_redrawn_after_the_reals_is_seen(target, monkeypatch):
    plan = find_summation(target)
    monkeypatch.setattr(type(plan), "backward", lambda self, key, tables: jnp.zeros(self.num_sites, jnp.int32))
    assert _p_value(MIXED["collapsed"].factory(target, **OPTIONS, max_doublings=3, summation=plan)) < ALPHA
