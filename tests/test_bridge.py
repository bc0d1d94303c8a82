"""Bridge sampling against exact log Z: unbiased within its own standard error, which covers; better than weights alone.

Seeds are fixed. With 40 seeds the z-scores are judged by their mean (|mean| sqrt(40) < 4.9, alpha = 1e-6) and by the
sum of their squares (chi-square with 40 degrees of freedom, alpha = 1e-6 on each side). That is coarse: it sees a bias
of 0.8 standard errors, and a standard error too small by a factor 1.6 or too large by a factor 2. Measured once with
4500 seeds (exact dequantizer, independent draws): mean z 0.007 +- 0.015, sd 1.00, 95.0 % within 1.96.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from small_targets import log_table, small_target
from terrazzo import diagnostics
from terrazzo.errors import OptionError
from terrazzo.problems.exact import exact_answers
from terrazzo.transports import REGISTRY, posterior_log_weights, sample_transport
from transport_laws import perturbed

NUM_SEEDS = 40


def sticky_chains(rng, probabilities, num_chains, num_draws, stay):
    """Stationary chains that stay with probability `stay` and else draw afresh: exact, with a known autocorrelation."""
    fresh = rng.choice(len(probabilities), (num_chains, num_draws), p=probabilities)
    source = np.where(rng.random((num_chains, num_draws)) < stay, 0, np.arange(num_draws))
    source[:, 0] = 0
    return np.take_along_axis(fresh, np.maximum.accumulate(source, axis=1), axis=1)


def judge(scores):
    scores = np.asarray(scores)
    assert abs(scores.mean()) * np.sqrt(len(scores)) < 4.9
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(scores))
    assert low < (scores**2).sum() < high


def crooked(target, scale=1.5, seed=0):
    """A product transport with arbitrary logits: far from the target."""
    rng = np.random.default_rng(seed)
    return tz.transports.product_transport(target.space, logits=scale * rng.normal(size=(3, target.space.max_size)))


@pytest.mark.parametrize("stay", [0.0, 0.9])
def test_calibrated_with_an_exact_dequantizer(stay):
    target = small_target("mixed", num_impossible=3, scale=1.5)
    exact, transport = exact_answers(target), crooked(target)
    log_weights = np.asarray(posterior_log_weights(jax.random.key(0), transport, target, exact.states))
    possible = np.isfinite(log_table(target))
    scores, effective = [], []
    for seed in range(NUM_SEEDS):
        own = sample_transport(jax.random.key(seed), transport, target, 2000).log_weights
        index = sticky_chains(np.random.default_rng(seed), exact.probabilities, 8, 500, stay)
        assert possible[index].all()
        out = diagnostics.bridge_log_z(own, log_weights[index])
        scores.append((out.log_z - exact.log_z) / out.standard_error)
        effective.append(out.ess)
    judge(scores)
    assert np.mean(effective) == pytest.approx(4000 * (1 - stay) / (1 + stay), rel=0.2)


def test_calibrated_with_lifted_draws_of_a_flow():
    target = small_target("mixed", scale=1.5)
    exact = exact_answers(target)
    options = {"architecture": "affine", "num_layers": 2, "width": 8, "context_width": 4}
    transport = perturbed(REGISTRY["flow"].build(target.space, key=jax.random.key(3), **options), 0.2)
    own = sample_transport(jax.random.key(0), transport, target, NUM_SEEDS * 1000).log_weights.reshape(NUM_SEEDS, -1)
    index = sticky_chains(np.random.default_rng(1), exact.probabilities, NUM_SEEDS * 4, 100, 0.5)
    posterior = posterior_log_weights(jax.random.key(1), transport, target, exact.states[index])
    assert posterior.shape == (NUM_SEEDS * 4, 100)
    runs = [diagnostics.bridge_log_z(*run) for run in zip(own, posterior.reshape(NUM_SEEDS, 4, 100), strict=True)]
    judge([(run.log_z - exact.log_z) / run.standard_error for run in runs])


def test_beats_importance_sampling_where_the_transport_is_bad():
    """A transport that puts 0.2 % where the target has half of its mass: the weights alone rarely see that half."""
    target = tz.Target(lambda t: jnp.where(t.sum() == 0, jnp.log(1023.0), 0.0), tz.binary(10))
    exact = exact_answers(target)
    logits = np.stack([np.full(10, -np.log((1 / 0.002) ** 0.1 - 1)), np.zeros(10)], axis=1)
    transport = tz.transports.product_transport(target.space, logits=logits)
    log_weights = np.asarray(posterior_log_weights(jax.random.key(0), transport, target, exact.states))
    weighed, bridged = [], []
    for seed in range(NUM_SEEDS):
        own = sample_transport(jax.random.key(seed), transport, target, 500).log_weights
        index = sticky_chains(np.random.default_rng(seed), exact.probabilities, 4, 125, 0.0)
        weighed.append(diagnostics.importance_summary(own).log_z - exact.log_z)
        bridged.append(diagnostics.bridge_log_z(own, log_weights[index]).log_z - exact.log_z)
    assert np.sqrt(np.mean(np.square(bridged))) < 0.5 * np.sqrt(np.mean(np.square(weighed)))


def test_agrees_with_tz_sample():
    target = small_target("ordered")
    result = tz.sample(target, seed=0, sampler="systematic_gibbs", draws=500, warmup=50, progress="off")
    transport = crooked(target, 0.5)
    posterior = posterior_log_weights(jax.random.key(0), transport, target, result.theta)
    own = sample_transport(jax.random.key(1), transport, target, 4000).log_weights
    out = diagnostics.bridge_log_z(own, posterior)
    assert abs(out.log_z - exact_answers(target).log_z) < 4.9 * out.standard_error
    assert out.standard_error < 0.05


def test_a_perfect_transport_has_no_error():
    out = diagnostics.bridge_log_z(np.full(100, 7.0), np.full((2, 50), 7.0))
    assert out.log_z == pytest.approx(7.0)
    assert out.standard_error == 0.0
    assert out.ess == 100


def test_huge_and_impossible_weights():
    rng = np.random.default_rng(0)
    own, posterior = rng.normal(4000.0, 1.0, 500), rng.normal(4001.0, 1.0, (4, 100))
    base = diagnostics.bridge_log_z(own, posterior)
    assert base.log_z == pytest.approx(4000.5, abs=4.9 * base.standard_error)
    # half of the transport's draws impossible: Z halves
    halved = diagnostics.bridge_log_z(np.concatenate([own, np.full(500, -np.inf)]), posterior)
    assert halved.log_z == pytest.approx(4000.5 - np.log(2), abs=4.9 * halved.standard_error)
    # half of the posterior out of the transport's reach: Z doubles
    doubled = diagnostics.bridge_log_z(own, np.concatenate([posterior, np.full((4, 100), np.inf)]))
    assert doubled.log_z == pytest.approx(4000.5 + np.log(2), abs=0.2)
    nothing = diagnostics.bridge_log_z(np.full(10, -np.inf), posterior)
    assert nothing.log_z == -np.inf
    assert np.isnan(nothing.standard_error)
    assert diagnostics.bennett(own, np.full(4, np.inf)) == np.inf
    assert np.isnan(diagnostics.bennett(np.full(4, -np.inf), np.full(4, np.inf)))
    assert np.isnan(diagnostics.bennett(own, np.array([np.nan, 1.0])))


@pytest.mark.parametrize(
    ("own", "posterior", "field"),
    [
        (np.array([np.nan, 0.0]), np.zeros((2, 4)), "own_log_weights"),
        (np.array([0.0]), np.zeros((2, 4)), "own_log_weights"),
        (np.zeros(4), np.zeros(8), "posterior_log_weights"),
        (np.zeros(4), np.zeros((2, 3)), "posterior_log_weights"),
        (np.zeros(4), np.full((2, 4), -np.inf), "posterior_log_weights"),
    ],
)
def test_bad_input(own, posterior, field):
    with pytest.raises(OptionError, match=field):
        diagnostics.bridge_log_z(own, posterior)


def test_cells_too_thin_to_lift_weigh_infinitely():
    """With the uniform dequantizer and K = 2^23 most cells near the ends cannot be lifted in single precision."""
    with jax.enable_x64(False):
        space = tz.Space(tz.integers(0, 2**23 - 1, 2))
        target = tz.Target(lambda t: -1e-6 * t.astype(float).sum(), space)
        options = {"architecture": "spline", "num_layers": 2, "width": 8, "dequantizer": "uniform"}
        transport = REGISTRY["flow"].build(space, key=jax.random.key(3), **options)
        theta = np.concatenate([np.full((8, 2), 2**23 - 2), np.full((8, 2), 3)]).astype(np.int32)
        weights = np.asarray(posterior_log_weights(jax.random.key(0), transport, target, theta))
    assert not np.isnan(weights).any()
    assert (weights > -np.inf).all()


def test_sample_draws_from_the_transport_itself():
    target = small_target("mixed")
    transport = crooked(target)
    theta = transport.sample(jax.random.key(0), 20_000)
    assert theta.shape == (20_000, 3)
    assert (theta == sample_transport(jax.random.key(0), transport, target, 20_000).theta).all()
    counts = np.bincount(np.asarray(target.space.index(theta)), minlength=target.space.num_states)
    q = np.exp(np.asarray(jax.jit(jax.vmap(transport.log_prob))(jnp.asarray(target.space.enumerate()))))
    rare = 20_000 * q < 5
    assert q.sum() == pytest.approx(1.0)
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = 20_000 * np.append(q[~rare], q[rare].sum()) + 1e-9
    assert ((observed - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-6, len(observed) - 1)
