"""What is kept in place of configurations: the values of a function, drawn as they would be with all of theta."""

import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import OptionError

OPTIONS = {"seed": 2, "chains": 4, "draws": 60, "warmup": 10, "progress": "off"}


def log_prob(theta):
    s = 2.0 * theta.reshape(4, 4).astype(float) - 1.0
    return 0.2 * jnp.sum(s * jnp.roll(s, 1, 0) + s * jnp.roll(s, 1, 1))


def keep(theta):
    return {
        "up": jnp.sum(theta),
        "corners": theta.reshape(4, 4)[jnp.array([0, -1]), jnp.array([0, -1])].astype(float) * 0.5,
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keep") / "run"
    whole = tz.sample(log_prob, tz.binary(16), sampler=tz.samplers.coloured_gibbs, **OPTIONS)
    part = tz.sample(
        log_prob, tz.binary(16), sampler=tz.samplers.coloured_gibbs(keep=keep), checkpoint=folder, **OPTIONS
    )
    return whole, part, folder


def test_values_are_those_of_the_configurations(both):
    whole, part, folder = both
    np.testing.assert_array_equal(part["up"], whole["theta"].sum(axis=-1))
    np.testing.assert_array_equal(part["corners"], whole["theta"][..., [0, 15]] * 0.5)
    np.testing.assert_array_equal(part.log_prob, whole.log_prob)
    assert part.codes.shape == (4, 60, 0)
    with pytest.raises(KeyError, match="was not kept"):
        part["theta"]
    again = tz.Result.load(folder)
    np.testing.assert_array_equal(again["up"], part["up"])
    assert str(again.summary()) == str(part.summary())


def test_values_are_summarised_judged_stored_and_exported(both, tmp_path):
    _, part, folder = both
    rows = part.summary()
    assert list(rows.index) == ["corners[0]", "corners[1]", "up", "log_prob"]
    assert part.verdict.grade in ("unchecked", "not trusted")
    saved = tz.Result.load(part.save(tmp_path / "part.tz"))
    np.testing.assert_array_equal(saved["corners"], part["corners"])
    assert {"chain", "draw", "up", "log_prob"} <= set(part.to_pandas().columns)
    assert part.to_arviz()["posterior"]["corners"].shape == (4, 60, 2)
    (folder / "result.tz").unlink()  # as if the run had not ended
    np.testing.assert_array_equal(tz.Result.load(folder)["up"], part["up"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "must be a function"),
        (lambda t: {"log_prob": t.sum()}, "no free name"),
        (lambda t: {}, "returns nothing"),
        (lambda t: t @ jnp.ones(3), "raised Type"),
        (lambda t: {"x": t.astype(complex).sum()}, "complex"),
    ],
)
def test_a_wrong_function_is_an_error_before_anything_runs(given, words):
    with pytest.raises(OptionError, match=words):
        tz.sample(log_prob, tz.binary(16), sampler=tz.samplers.gibbs(keep=given), **OPTIONS)


def test_samplers_that_explore_keep_configurations():
    with pytest.raises(OptionError, match="exploration=False"):
        tz.sample(log_prob, tz.binary(16), sampler=tz.samplers.hybrid(keep=keep), **OPTIONS)


def test_kept_values_that_stay_on_disk(tmp_path, monkeypatch):
    """There are no configurations to look at then, in memory or on disk."""
    monkeypatch.setattr("terrazzo.inference.drawing.STORED_BYTES", 0)
    sampler = tz.samplers.gibbs(keep=lambda theta: {"up": theta.astype(float).mean()})
    options = dict(seed=0, draws=12, warmup=5, progress="off", sampler=sampler, checkpoint=tmp_path / "run")
    result = tz.sample(lambda t: 0.3 * t.astype(float).sum(), tz.binary(5), **options)
    assert np.asarray(result["up"]).shape == (8, 12)
