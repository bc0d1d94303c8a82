"""Hints of a target are held against its log-probability: a wrong one is an error that names it, not another law."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from calls import sample_with
from terrazzo.errors import OptionError, TargetError, UnsupportedError
from terrazzo.samplers.kernels.coloured_gibbs import coloured_gibbs
from terrazzo.samplers.parts.pairwise import pairwise_terms

WEIGHTS = np.linspace(-1.0, 2.0, 6)


def real(theta):
    return theta.astype(float)


def chain(theta):
    return real(theta) @ jnp.asarray(WEIGHTS) + 0.7 * (real(theta)[1:] * real(theta)[:-1]).sum()


def rare(theta):
    """Possible only where the first two sites are one and the sites sum to four at most."""
    is_possible = (theta[0] == 1) & (theta[1] == 1) & (theta.sum() <= 4)
    return jnp.where(is_possible, chain(theta), -jnp.inf)


def logits_of(fn, scale=1.0, shift=0.0):
    def site_logits(theta, i):
        values = jnp.stack([fn(theta.at[i].set(0)), fn(theta.at[i].set(1))])
        return scale * values.astype(float) + shift * jnp.arange(2.0) * jnp.where(i == 3, 1.0, 0.0)

    return site_logits


@pytest.mark.parametrize("fn", [chain, rare, tz.blackbox(lambda t: float(np.asarray(t) @ WEIGHTS))])
def test_right_hints_are_taken(fn):
    plain = chain if fn is chain else rare if fn is rare else (lambda t: real(t) @ jnp.asarray(WEIGHTS))
    tz.Target(fn, tz.binary(6), site_logits=logits_of(plain))


@pytest.mark.parametrize("fn", [chain, rare])
def test_wrong_site_logits_are_named(fn):
    with pytest.raises(TargetError, match=r"site_logits: differ from log_prob at site 3: .*log_prob by") as caught:
        tz.Target(fn, tz.binary(6), site_logits=logits_of(fn, shift=0.3))
    assert "->" in str(caught.value)
    with pytest.raises(TargetError, match="site_logits"):
        tz.Target(fn, tz.binary(6), site_logits=logits_of(fn, scale=0.5))


def test_small_errors_of_single_precision_are_no_errors():
    big = lambda theta: jnp.asarray(3e4, jnp.float32) * real(theta).astype(jnp.float32).sum()
    rough = logits_of(lambda theta: big(theta) * jnp.asarray(1 + 3e-7, jnp.float32))
    tz.Target(big, tz.binary(6), site_logits=rough)
    with pytest.raises(TargetError, match="site_logits"):
        tz.Target(big, tz.binary(6), site_logits=logits_of(lambda theta: big(theta) * jnp.asarray(1.01, jnp.float32)))


def test_site_logits_of_wrong_shape_or_that_raise():
    with pytest.raises(TargetError, match="shape"):
        tz.Target(chain, tz.binary(6), site_logits=lambda theta, i: jnp.zeros(3))
    with pytest.raises(TargetError, match=r"KeyError.*test_hints.py, line \d+"):
        tz.Target(chain, tz.binary(6), site_logits=lambda theta, i: {}["no"])


class Fields(tz.AbstractRunningConditionals):
    """Right where the first site is 0, wrong elsewhere."""

    wrong: bool = eqx.field(static=True)

    def start(self, theta):
        return theta

    def logits(self, tables, theta):
        rows = jnp.stack([0.0 * jnp.asarray(WEIGHTS), jnp.asarray(WEIGHTS)], axis=1)
        return rows * jnp.where(self.wrong & (tables[0] == 1) & (tables[2] == 1) & (tables[5] == 0), 2.0, 1.0)

    def moved(self, tables, theta, i, value):
        return theta.at[i].set(value)


def test_running_conditionals_are_checked_at_several_configurations():
    linear = lambda theta: real(theta) @ jnp.asarray(WEIGHTS)
    tz.Target(linear, tz.binary(6), running_conditionals=Fields(False))
    with pytest.raises(TargetError, match="running_conditionals: differ from log_prob at site"):
        tz.Target(linear, tz.binary(6), running_conditionals=Fields(True))


def test_interacting_sites_of_one_colour_are_named():
    tz.Target(chain, tz.binary(6), colours=[0, 1, 0, 1, 0, 1])
    with pytest.raises(TargetError, match=r"colours: sites 2 and 3 share colour 2 but interact: .* by .* by "):
        tz.Target(chain, tz.binary(6), colours=[0, 1, 2, 2, 0, 1])
    with pytest.raises(UnsupportedError, match="sites 2 and 3"):
        coloured_gibbs(tz.Target(chain, tz.binary(6)), colours=[0, 1, 2, 2, 0, 1])


def test_one_wrong_pair_among_a_thousand_sites():
    pair = (131, 777)  # of one colour, far apart
    log_prob = lambda theta: (
        0.5 * (real(theta)[1:] * real(theta)[:-1]).sum() + real(theta)[pair[0]] * real(theta)[pair[1]]
    )
    with pytest.raises(TargetError, match="colours"):
        tz.Target(log_prob, tz.binary(1000), colours=np.arange(1000) % 2)


def test_pair_terms_given_by_hand_are_checked():
    target = tz.Target(lambda t: 1.5 * real(t)[0] * real(t)[1], tz.binary(3))
    terms = pairwise_terms(target)
    options = {"seed": 0, "sampler": "swendsen_wang", "draws": 2, "warmup": 0, "chains": 1, "progress": "off"}
    sample_with(target, sampler_options={"terms": terms}, **options)
    with pytest.raises(UnsupportedError, match="terms differ from log_prob"):
        sample_with(target, sampler_options={"terms": terms._replace(couplings=2 * terms.couplings)}, **options)
    with pytest.raises(OptionError, match="terms: must be Pairwise terms, got 3"):
        sample_with(target, sampler_options={"terms": 3}, **options)


def test_a_black_box_is_checked_too():
    box = tz.blackbox(lambda t: float(t[0] * t[1] + t[2]))
    with pytest.raises(TargetError, match="sites 0 and 1"):
        tz.Target(box, tz.binary(3), colours=[0, 0, 1])


def test_the_one_hot_form_is_checked():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    log_prob = lambda theta: table[jnp.arange(4), theta].sum()
    tz.Target(log_prob, tz.categorical(3, 4), one_hot_log_prob=lambda rows: (rows * table).sum())
    with pytest.raises(TargetError, match=r"one_hot_log_prob: differs from log_prob where site 0 is \d: .* for "):
        tz.Target(log_prob, tz.categorical(3, 4), one_hot_log_prob=lambda rows: (rows * table).sum() + 1.0)


def test_conditioned_targets_keep_right_hints():
    target = tz.Target(chain, tz.binary(6), site_logits=logits_of(chain), colours=[0, 1, 0, 1, 0, 1])
    rest = tz.condition(target, {2: 1})
    assert rest.site_logits_fn is not None
    assert len(rest.colours) == 5
