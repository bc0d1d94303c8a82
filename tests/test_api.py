"""The public surface: one dialect, objects instead of dicts of options, one result."""

import inspect
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import terrazzo as tz
from small_targets import log_table, small_target
from terrazzo.diagnostics import describe, mcse

SHORT = {"seed": 0, "chains": 4, "warmup": 20, "progress": "off"}


def chain(theta):
    x = theta.astype(float)
    return 0.4 * jnp.sum(x[1:] * x[:-1]) - 0.2 * jnp.sum(x)


def test_the_call_has_at_most_15_arguments():
    assert len(inspect.signature(tz.sample).parameters) <= 15


def test_only_public_names_are_listed():
    assert set(dir(tz)) == {*tz.__all__, "__version__"}
    assert all(getattr(tz, name) is not None for name in tz.__all__)


@pytest.mark.parametrize("name", sorted(tz.samplers.REGISTRY | tz.samplers.PROGRAMS))
def test_entries_are_objects_that_bind_options(name):
    entry = getattr(tz.samplers, name)
    assert entry.name == name
    assert repr(entry()) == f"samplers.{name}()"
    with pytest.raises(AttributeError):
        entry.name = "other"


def test_a_name_is_an_entry_with_its_defaults():
    runs = [tz.sample(chain, tz.binary(6), draws=20, sampler=s, **SHORT) for s in ("gibbs", tz.samplers.gibbs)]
    assert (runs[0].theta == runs[1].theta).all()


def test_kernels_inside_kernels():
    inner = tz.samplers.gibbs(num_updates=3)
    sampler = tz.samplers.parallel_tempering(kernel=inner, num_temperatures=3)
    result = tz.sample(chain, tz.binary(6), draws=30, sampler=sampler, **SHORT)
    named = tz.samplers.parallel_tempering.factory(
        tz.Target(chain, tz.binary(6)), kernel="gibbs", kernel_options={"num_updates": 3}, num_temperatures=3
    )
    assert named is not None
    assert result.replicas.log_prob.shape == (4, 30, 3)
    assert result.replicas.inverse_temperatures[-1] == 1


class Position(NamedTuple):
    position: jax.Array


class OwnMetropolis(NamedTuple):
    """A user's kernel in BlackJAX's shape: flips one site, accepts by Metropolis."""

    target: tz.Target

    def init(self, position, rng_key=None):
        return Position(position)

    def step(self, rng_key, state):
        site_key, accept_key = jax.random.split(rng_key)
        i = jax.random.randint(site_key, (), 0, state.position.size)
        proposed = state.position.at[i].set(1 - state.position[i])
        gain = self.target.log_prob(proposed) - self.target.log_prob(state.position)
        is_accepted = -jax.random.exponential(accept_key, (), gain.dtype) < gain
        return Position(jnp.where(is_accepted, proposed, state.position)), None


def test_a_kernel_of_ones_own():
    """Its draws follow the target; exact means within 5 standard errors."""
    target = small_target("binary")
    result = tz.sample(target, seed=0, sampler=OwnMetropolis(target), draws=4000, thin=5, progress="off")
    log_probs = log_table(target)
    exact = np.exp(log_probs - np.logaddexp.reduce(log_probs)) @ target.space.enumerate()
    assert (np.abs(result.theta.mean(axis=(0, 1)) - exact) < 5 * np.asarray(mcse(result.theta))).all()
    assert result.verdict.grade == "unchecked"  # nothing is known about its invariance


@pytest.mark.parametrize("sampler", ["gibbs", "metropolis", tz.samplers.parallel_tempering(num_temperatures=3)])
def test_extended_runs_are_longer_runs(sampler):
    short = tz.sample(chain, tz.binary(6), draws=12, sampler=sampler, **SHORT)
    longer = short.extend(draws=5).extend(draws=3)
    whole = tz.sample(chain, tz.binary(6), draws=20, sampler=sampler, **SHORT)
    assert (longer.theta == whole.theta).all()
    assert (longer.log_prob == whole.log_prob).all()
    assert longer.provenance["draws"] == 20


def test_what_cannot_be_extended_says_so(tmp_path):
    result = tz.sample(chain, tz.binary(6), draws=12, sampler="gibbs", **SHORT)
    loaded = tz.Result.load(result.save(tmp_path / "r.tz"))
    with pytest.raises(tz.errors.UnsupportedError, match="checkpoint"):
        loaded.extend(draws=3)
    with pytest.raises(tz.errors.OptionError, match="draws"):
        result.extend(draws=0)


def test_results_in_pandas():
    space = tz.Space(a=tz.binary(2), b=tz.categorical(["x", "y"]))

    def log_prob(v):
        return 0.3 * v["a"].astype(float).sum() - 0.1 * v["b"].astype(float)

    result = tz.sample(log_prob, space, draws=12, sampler="gibbs", **SHORT)
    assert result["b"].shape == (4, 12)
    frame = result.to_pandas()
    assert list(frame.columns[:5]) == ["chain", "draw", "a[0]", "a[1]", "b"]
    assert len(frame) == 48
    assert set(frame["b"]) <= {"x", "y"}
    summary = result.summary()
    assert isinstance(summary, pd.DataFrame)
    assert "verdict" in str(summary)
    assert "verdict" in summary._repr_html_()
    assert summary.loc["a[0]", "mean"] == pytest.approx(result["a"][..., 0].mean())
    assert type(summary[["mean"]] * 2) is pd.DataFrame


def test_weighted_statistics():
    """Means under weights are those of the weighted law; equal weights give plain means."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, 3, (4, 5000, 2)).astype(float)
    plain = describe(draws, np.ones((4, 5000)))
    np.testing.assert_allclose(plain.mean, draws.mean(axis=(0, 1)))
    assert plain.ess_bulk == pytest.approx(20_000)
    tilted = describe(draws, np.exp(0.7 * draws[..., 0]))
    law = np.exp(0.7 * np.arange(3))
    exact = law @ np.arange(3) / law.sum()
    assert abs(tilted.mean[0] - exact) < 5 * tilted.mcse[0]
    assert tilted.mcse[0] == pytest.approx(np.sqrt(law @ (np.arange(3) - exact) ** 2 * law @ np.ones(3)) / 1e2, rel=2)
    assert (tilted.r_hat < 1.01).all()
