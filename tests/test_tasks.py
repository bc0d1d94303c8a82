"""Ten tasks of somebody who comes from another library, each done with what one page of the site says.

Every task names its page. The solutions use public names only, and check their own answer.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz

OPTIONS = {"seed": 0, "progress": "off"}


@pytest.fixture(autouse=True)
def _as_users_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def chain(theta):
    return 0.6 * jnp.sum(theta[1:] == theta[:-1]) + 0.3 * jnp.sum(theta)


def test_posterior_probabilities_of_named_and_mixed_variables():  # start/reading.md
    space = tz.Space(switch=tz.binary(2), colour=tz.categorical(["red", "green"]), count=tz.integers(1, 4))
    result = tz.sample(lambda v: v["switch"][0] * 2.0 - 0.5 * v["count"] + v["colour"], space, **OPTIONS)
    assert result["switch"].mean(axis=(0, 1))[0] == pytest.approx(1 / (1 + np.exp(-2.0)), abs=0.02)
    assert np.mean(result["colour"] == "green") == pytest.approx(1 / (1 + np.exp(-1.0)), abs=0.02)
    assert set(np.unique(result["count"])) == {1, 2, 3, 4}
    assert list(result.to_pandas().columns[:2]) == ["chain", "draw"]


def test_whether_to_believe_a_run():  # start/reading.md, guides/not-trusted.md
    good = tz.sample(chain, tz.binary(10), **OPTIONS)
    bad = tz.sample(lambda t: 3.0 * jnp.abs(jnp.sum(t) - 9.0), tz.binary(18), sampler="gibbs", draws=100, **OPTIONS)
    assert good.verdict.is_trusted
    assert not bad.verdict.is_trusted
    assert "R-hat" in str(bad.diagnose())


def test_many_sites_exactly():  # guides/fast-functions.md
    found = tz.explain(chain, tz.binary(300))
    assert found.treewidth == 1
    result = tz.sample(chain, tz.binary(300), draws=50, **OPTIONS)
    assert result.verdict.grade == "exact"


def test_subsets_of_a_given_size():  # guides/constraints.md
    def five(theta):
        return jnp.where(jnp.sum(theta) == 5, theta @ (0.1 * jnp.arange(30)), -jnp.inf)

    start = np.zeros((8, 30), int)
    start[:, :5] = 1
    result = tz.sample(five, tz.binary(30), sampler="swap", init=start, draws=100, **OPTIONS)
    assert (result["theta"].sum(axis=-1) == 5).all()


def test_a_program_that_jax_cannot_trace():  # guides/black-boxes.md
    def simulate(v):
        return -abs(sum(int(v["a"]) for _ in range(int(v["b"]))) - 12) / 2.0

    space = tz.Space(a=tz.integers(1, 6), b=tz.integers(1, 6))
    result = tz.sample(tz.blackbox(simulate), space, **OPTIONS)
    product = result["a"] * result["b"]
    assert np.bincount(product.ravel()).argmax() == 12


def test_which_of_two_models():  # guides/evidence.md
    heads = np.array([9, 8, 9])

    def fair(flips):
        return 30 * jnp.log(0.5) + 0.0 * flips

    def biased(level):  # a probability in tenths, uniform prior
        p = level / 10.0
        return jnp.sum(heads * jnp.log(p) + (10 - heads) * jnp.log1p(-p)) - jnp.log(9.0)

    one = tz.sample(lambda t: fair(t) - jnp.log(2.0), tz.binary(), **OPTIONS).log_z
    other = tz.sample(biased, tz.integers(1, 9), **OPTIONS)
    assert other.log_z_verdict.grade == "exact"
    assert other.log_z - one > 4


def test_missing_values():  # guides/conditioning.md
    target = tz.Target(chain, tz.binary(12))
    seen = np.ma.array(np.zeros(12, int), mask=np.arange(12) >= 6)
    rest = tz.sample(tz.condition(target, seen), **OPTIONS)
    assert rest["theta"].shape == (8, 1000, 6)
    assert rest.log_z < tz.sample(target, **OPTIONS).log_z


def test_the_best_configuration_and_a_proof():  # guides/conditioning.md
    best = tz.maximize(chain, tz.binary(40), **OPTIONS)
    assert best.is_proven
    assert (best.theta == 1).all()


def test_a_run_that_goes_on_after_a_crash():  # guides/continuing.md
    options = {**OPTIONS, "sampler": "gibbs", "checkpoint": "run"}
    tz.sample(chain, tz.binary(6), draws=50, **options)
    longer = tz.sample(chain, tz.binary(6), draws=80, **options)
    at_once = tz.sample(chain, tz.binary(6), draws=80, sampler="gibbs", **OPTIONS)
    assert (longer["theta"] == at_once["theta"]).all()
    again = tz.Result.load(longer.save("run.tz"))
    assert (again["theta"] == longer["theta"]).all()


def test_a_page_for_a_colleague_and_draws_for_arviz():  # report.md, api/results.md
    result = tz.sample(chain, tz.binary(6, dims="gene", coords={"gene": list("abcdef")}), **OPTIONS)
    page = result.report("run.html").read_text(encoding="utf-8")
    assert "exact" in page
    data = result.to_arviz()
    assert list(data.posterior["theta"].coords["gene"].values) == list("abcdef")
