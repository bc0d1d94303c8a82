"""The worked examples of CONTRIBUTING.md obey the laws, and its picture of the house is right."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from sampled_laws import ALPHA, invariance, stepper
from scripted import stationary, transition_matrices
from small_targets import log_table, small_target
from terrazzo import samplers
from test_imports import OUTSIDE, SOURCE, level
from transport_laws import identity_z_scores, lift_z_scores, limit, round_trip_failures

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def example(name):
    """What a block of code defines."""
    (code,) = re.findall(rf"```python {name}\n(.*?)```", TEXT, re.DOTALL)
    namespace = {"__name__": f"contributing_{name}"}
    exec(compile(code, f"CONTRIBUTING.md: {name}", "exec"), namespace)
    return namespace


def test_the_sampler(monkeypatch):
    spec = example("sampler")["spec"]
    target = small_target("mixed", num_impossible=2)
    stacked = jax.tree.map(lambda leaf: leaf[None] if isinstance(leaf, jax.Array) else leaf, target)
    arrays = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else None, stacked)
    (P,) = transition_matrices(spec.factory, target, arrays)
    pi = stationary(log_table(target))
    assert np.abs(pi @ P - pi).max() <= 1e-12
    assert invariance(stepper(spec.factory), target) > ALPHA
    monkeypatch.setitem(samplers.REGISTRY, spec.name, spec)
    result = tz.sample(target, seed=0, sampler=spec.name, chains=2, draws=5, warmup=0, progress="off")
    assert result.theta.shape == (2, 5, 3)


def test_the_transport():
    space = tz.Space(a=tz.integers(-1, 1), b=tz.binary())
    transport = example("transport")["UniformTransport"](space)
    for scores in (identity_z_scores(transport, num_draws=2**16), lift_z_scores(transport, num_draws=2**13)):
        assert np.abs(scores).max() < limit(scores.size)
    assert round_trip_failures(transport, 10_000) == 0


@pytest.mark.parametrize(("mean", "is_right"), [(0.5, True), (0.9, False)])
def test_the_check(mean, is_right):
    parts = example("check")
    theta = np.random.default_rng(0).integers(0, 2, (8, 500, 3))
    result = tz.Result(space=tz.Space(tz.binary(3)), theta=theta, sample_stats={"log_prob": np.zeros((8, 500))})
    result = parts["with_check"](result, parts["known_mean"](result, mean))
    assert any(check.name == "known mean" and check.passed == is_right for check in result.checks())
    assert (result.verdict.grade == "not trusted") == (not is_right)


def test_the_problem():
    problem = example("problem")["biased_coins"]([0.3, -1.0, 2.0])
    table = log_table(problem.target)
    assert problem.log_z == pytest.approx(np.logaddexp.reduce(table))
    states = problem.target.space.enumerate()
    np.testing.assert_allclose(stationary(table) @ states, problem.truth["mean"], rtol=1e-12)
    assert jnp.asarray(table).shape == (8,)


def test_the_picture_shows_every_room_in_order():
    (tree,) = re.findall(r"```\nsrc/terrazzo/\n(.*?)\ntests/", TEXT, re.DOTALL)
    shown = [line.split()[0].rstrip("/").removesuffix(".py") for line in tree.splitlines() if line.startswith("  ")]
    rooms = {path.stem for path in SOURCE.iterdir() if path.name[0] not in "._"}
    assert set(shown) == rooms
    inside = [level(name) for name in shown if name not in OUTSIDE]
    assert inside == sorted(inside)


def test_the_citation_names_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {tz.__version__}\n" in text
