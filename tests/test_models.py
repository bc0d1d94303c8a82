"""Models of NumPyro and PyMC as targets: densities, spaces, references, predictions, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.infer.util import log_density
from scipy import stats

import terrazzo as tz
from mixed_models import NAMES, mixed_model
from terrazzo.errors import MissingPackageError, OptionError, SpaceError, TargetError, TerrazzoError, UnsupportedError
from terrazzo.results.models import Model, Observed
from terrazzo.results.result import Result

NUM_POINTS = 4


def values_of(target, values):
    with jax.numpy_dtype_promotion("standard"):
        return float(target.log_prob_fn(values))


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_of_a_model_have_one_density(name):
    found = mixed_model(name)
    target, own = tz.from_numpyro(found.model, *found.args), dict(found.space.variables)
    assert {n: (v.kind, v.shape) for n, v in target.space.variables} == {n: (v.kind, v.shape) for n, v in own.items()}

    @jax.jit
    @jax.vmap
    def values(key):
        at = found.possible(target.reference.draw(key))
        with jax.numpy_dtype_promotion("standard"):
            return target.log_prob_fn(at), found.log_prob(at), log_density(found.model, found.args, {}, at)[0]

    mine, by_hand, own = values(jax.random.split(jax.random.key(0), NUM_POINTS))
    assert np.isfinite(mine).all()
    np.testing.assert_allclose(mine - by_hand, (mine - by_hand)[0], atol=1e-8)
    np.testing.assert_allclose(mine, own, rtol=1e-12)  # NumPyro's own


# ---- spaces


def everything(y=None):
    with numpyro.plate("group", 3):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        kind = numpyro.sample("kind", dist.Categorical(probs=jnp.array([0.2, 0.3, 0.5])))
    count = numpyro.sample("count", dist.Binomial(7, 0.4))
    day = numpyro.sample("day", dist.DiscreteUniform(-2, 4))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    share = numpyro.sample("share", dist.Beta(2.0, 3.0))
    angle = numpyro.sample("angle", dist.Uniform(-1.0, 2.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(4)))
    cuts = numpyro.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), (3,)))
    numpyro.sample("chol", dist.LKJCholesky(3, 2.0))
    with numpyro.plate("row", 2, dim=-2), numpyro.plate("group", 3, dim=-1):
        numpyro.sample("free", dist.Normal(0.0, 1.0))
    mean = on.sum() + kind.sum() + count + day + share + angle + weights[0] + cuts[0]
    numpyro.deterministic("mean", mean)
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def test_sites_become_variables():
    target = tz.from_numpyro(everything, 3.0)
    found = dict(target.space.variables)
    assert {name: v.kind for name, v in found.items()} == {
        "on": "binary", "kind": "categorical", "count": "integers", "day": "integers", "scale": "real", "share": "real",
        "angle": "real", "weights": "simplex", "cuts": "ordered", "chol": "real", "free": "real",
    }  # fmt: skip
    assert (found["day"].low, found["day"].size, found["count"].size, found["kind"].size) == (-2, 7, 8, 3)
    assert (found["angle"].low, found["angle"].high, found["scale"].low, found["scale"].high) == (-1.0, 2.0, 0.0, None)
    assert found["on"].dims == ("group",)
    assert found["free"].dims == ("row", "group")
    assert found["chol"].shape == (3, 3)
    assert found["chol"].num_unconstrained == 3
    assert target.reference is None  # the cut points have no proper prior
    assert set(target.model.observed) == {"y"}


def test_bijections_of_numpyro_keep_their_log_jacobians():
    bijection = dict(tz.from_numpyro(everything, 3.0).space.variables)["chol"].bijection
    y = jnp.array([0.3, -0.5, 0.8])
    lower = np.tril_indices(3, -1)
    jacobian = jax.jacfwd(lambda y: bijection.constrain(y)[lower])(y)
    np.testing.assert_allclose(bijection.log_jacobian(y), np.linalg.slogdet(jacobian)[1], rtol=1e-10)
    np.testing.assert_allclose(bijection.unconstrain(bijection.constrain(y)), y, rtol=1e-9)
    again = dict(tz.from_numpyro(everything, 1.0).space.variables)["chol"].bijection
    assert again == bijection
    assert hash(again) == hash(bijection)


# ---- bounds


def counting(y):
    rate = numpyro.sample("rate", dist.Exponential(0.5))
    k = numpyro.sample("k", dist.Poisson(rate))
    numpyro.sample("y", dist.Normal(k, 1.0), obs=y)


def test_bounds_cut_the_prior_and_the_reference_is_normalised():
    with pytest.warns(RuntimeWarning, match="prior of 'k' is cut to 0..6"):
        target = tz.from_numpyro(counting, 3.0, bounds={"k": (0, 6)})
    assert target.model.notes == ("the prior of 'k' is cut to 0..6",)
    at = {"rate": jnp.asarray(2.5), "k": jnp.asarray(4, jnp.int32)}
    within = stats.poisson.pmf(np.arange(7), 2.5).sum()
    prior = stats.expon.logpdf(2.5, scale=2.0) + stats.poisson.logpmf(4, 2.5)
    np.testing.assert_allclose(values_of(target, at), prior + stats.norm.logpdf(3.0, 4, 1), rtol=1e-10)
    np.testing.assert_allclose(float(target.reference.log_prob(at)), prior - np.log(within), rtol=1e-10)
    draws = jax.vmap(target.reference.draw)(jax.random.split(jax.random.key(0), 4000))
    assert int(draws["k"].min()) == 0
    assert int(draws["k"].max()) == 6
    expected = np.mean([stats.poisson.pmf(3, r) / stats.poisson.cdf(6, r) for r in np.asarray(draws["rate"])])
    assert abs(float((draws["k"] == 3).mean()) - expected) < 5 * 0.5 / 4000**0.5  # alpha 1e-6


def test_wide_bounds_do_not_warn():
    tz.from_numpyro(counting, 3.0, bounds={"k": (0, 60)})


def test_a_value_outside_a_support_that_depends_on_others_is_impossible():
    def model(y):
        n = numpyro.sample("n", dist.DiscreteUniform(2, 9))
        k = numpyro.sample("k", dist.Binomial(n, 0.5))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + k, 1.0), obs=y)

    with pytest.raises(SpaceError, match="depends on other latent sites"):
        tz.from_numpyro(model, 1.0)
    target = tz.from_numpyro(model, 1.0, bounds={"k": (0, 9)})
    at = lambda n, k: {"n": jnp.asarray(n, jnp.int32), "k": jnp.asarray(k, jnp.int32), "mu": jnp.asarray(0.5)}
    assert values_of(target, at(3, 4)) == -np.inf
    wanted = stats.binom.logpmf(2, 3, 0.5) - np.log(8) + stats.norm.logpdf(0.5) + stats.norm.logpdf(1.0, 2.5)
    np.testing.assert_allclose(values_of(target, at(3, 2)), wanted, rtol=1e-10)
    slope = jax.grad(lambda mu: target.log_prob_fn({**at(3, 4), "mu": mu}))(jnp.asarray(0.5))
    assert np.isfinite(slope)


# ---- what models may hold


def test_factors_masks_deltas_and_scales_count_as_in_numpyro():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        double = numpyro.sample("double", dist.Delta(2 * mu))
        numpyro.deterministic("both", mu + on)
        numpyro.factor("extra", -jnp.square(mu - 0.3))
        with handlers.mask(mask=jnp.array([True, False, True])), numpyro.plate("row", 3):
            numpyro.sample("y", dist.Normal(double + on, 1.0), obs=y)
        with handlers.scale(scale=2.0):
            numpyro.sample("again", dist.Normal(mu, 1.0), obs=y[0])

    y = jnp.array([0.1, 5.0, 0.4])
    target = tz.from_numpyro(model, y)
    assert target.space.names == ("mu", "on")
    at = {"mu": jnp.asarray(0.7), "on": jnp.asarray(1, jnp.int32)}
    wanted = stats.norm.logpdf(0.7) + np.log(0.3) - 0.16 + 2 * stats.norm.logpdf(0.1, 0.7)
    wanted += stats.norm.logpdf([0.1, 0.4], 2.4).sum()
    np.testing.assert_allclose(values_of(target, at), wanted, rtol=1e-10)
    np.testing.assert_allclose(float(target.reference.log_prob(at)), stats.norm.logpdf(0.7) + np.log(0.3), rtol=1e-10)


def test_sites_inside_a_scan_and_a_condition():
    def model(y):
        def step(before, seen):
            s = numpyro.sample("s", dist.Bernoulli(0.2 + 0.6 * before))
            numpyro.sample("y", dist.Normal(s, 1.0), obs=seen)
            return s, None

        on = numpyro.sample("on", dist.Bernoulli(0.5))
        cond(
            on == 1, lambda _: numpyro.sample("x", dist.Normal(3.0, 1.0)),
            lambda _: numpyro.sample("x", dist.Normal(0.0, 1.0)), None,
        )  # fmt: skip
        scan(step, 0, y)

    y = jnp.array([0.1, 1.2, 0.3])
    target = tz.from_numpyro(model, y)
    assert {name: v.shape for name, v in target.space.variables} == {"on": (), "x": (), "s": (3,)}
    at = {"on": jnp.asarray(1, jnp.int32), "x": jnp.asarray(2.0), "s": jnp.array([0, 1, 1], jnp.int32)}
    wanted = np.log(0.5) + stats.norm.logpdf(2.0, 3.0) + np.log([0.8, 0.2, 0.8]).sum()
    wanted += stats.norm.logpdf(np.asarray(y), [0, 1, 1]).sum()
    np.testing.assert_allclose(values_of(target, at), wanted, rtol=1e-6)


def test_models_that_differ_in_data_share_their_computation():
    one, two = (tz.from_numpyro(counting, y, bounds={"k": (0, 60)}) for y in (3.0, 4.0))
    assert one.log_prob_fn.computation == two.log_prob_fn.computation


# ---- what is refused


def no_latent(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("row", len(y), subsample_size=2) as rows:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows])


def with_param(y):
    mu = numpyro.param("mu", 0.0)
    numpyro.sample("x", dist.Normal(mu, 1.0))


def with_noise(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x + jax.random.normal(numpyro.prng_key()), 1.0), obs=y)


def dependent(y):
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    numpyro.sample("x", dist.Uniform(0.0, top))


def vectors(y):
    numpyro.sample("x", dist.Multinomial(5, jnp.ones(3) / 3))


def reserved(y):
    numpyro.sample("log_prob", dist.Normal(0.0, 1.0))


def failing(y):
    numpyro.sample("x", dist.Normal(0.0, 1.0))
    raise KeyError("no such column")


def twice(y):
    numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(0.0, 1.0))


def single(y):
    numpyro.sample("x", dist.DiscreteUniform(2, 2))


def on_a_sphere(y):
    numpyro.sample("x", dist.ProjectedNormal(jnp.ones(3)))


Y = np.arange(4.0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tz.from_numpyro(3, Y), TargetError, "must be a NumPyro model"),
        (lambda: tz.from_numpyro(counting), TargetError, "missing a required argument: 'y'"),
        (lambda: tz.from_numpyro(counting, Y, x=1), TargetError, "unexpected keyword argument 'x'"),
        (
            lambda: tz.from_numpyro(counting, 1.0),
            SpaceError,
            r"site 'k': has no upper bound\n.*bounds={'k': \(0, 50\)}",
        ),
        (lambda: tz.from_numpyro(counting, 1.0, bounds=5), OptionError, "must be a dict by site"),
        (lambda: tz.from_numpyro(counting, 1.0, bounds={"q": (0, 5)}), OptionError, "is no site of the model"),
        (lambda: tz.from_numpyro(counting, 1.0, bounds={"y": (0, 5)}), OptionError, "of an observed site"),
        (lambda: tz.from_numpyro(counting, 1.0, bounds={"rate": (0, 5)}), OptionError, "of a real site"),
        (lambda: tz.from_numpyro(counting, 1.0, bounds={"k": (5, 0)}), OptionError, "low < high"),
        (lambda: tz.from_numpyro(counting, 1.0, bounds={"k": 5}), OptionError, "two integers"),
        (lambda: tz.from_numpyro(counting, 1.0, bounds={"k": (-5, 5)}), SpaceError, "not inside 0..inf"),
        (lambda: tz.from_numpyro(no_latent, Y), TargetError, "no latent sites"),
        (lambda: tz.from_numpyro(subsampled, Y), TargetError, "takes 2 of 4 at random"),
        (lambda: tz.from_numpyro(with_param, Y), TargetError, "site 'mu': is a parameter without a prior"),
        (lambda: tz.from_numpyro(with_noise, 1.0), TargetError, "draws random numbers of its own"),
        (lambda: tz.from_numpyro(dependent, Y), SpaceError, "site 'x': has a support that depends"),
        (lambda: tz.from_numpyro(vectors, Y), SpaceError, "support of whole vectors"),
        (lambda: tz.from_numpyro(reserved, Y), SpaceError, "reserved name"),
        (lambda: tz.from_numpyro(failing, Y), TargetError, "raises KeyError: 'no such column'"),
        (lambda: tz.from_numpyro(twice, Y), TargetError, "raises"),
        (lambda: tz.from_numpyro(single, Y), SpaceError, "single value 2"),
        (lambda: tz.from_numpyro(on_a_sphere, Y), SpaceError, "no bijection"),
    ],
    ids=range(22),
)
def test_wrong_calls_are_typed(call, error, words):
    with pytest.raises(error, match=words) as found:
        call()
    assert isinstance(found.value, TerrazzoError)


@pytest.mark.parametrize("package", ["numpyro", "pymc"])
def test_a_missing_package_names_its_extra(package, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=rf"terrazzo\[{package}\]"):
        tz.from_numpyro(counting, 1.0) if package == "numpyro" else tz.from_pymc(None)


# ---- results


def regression(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    on = numpyro.sample("on", dist.Bernoulli(0.5))
    mean = numpyro.deterministic("mean", slope * on * x)
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(mean, 0.1), obs=y)


def predicted(model, draws, *args, **options):
    """A result with these draws, and its predictions."""
    space = model.space
    lead = np.shape(next(iter(draws.values())))[:2]
    rows = {name: np.asarray(x).reshape(-1, *np.shape(x)[2:]) for name, x in draws.items()}
    theta = space.encode(rows).reshape(*lead, -1)
    reals = space.real_values(jnp.asarray(space.encode_reals(rows)))
    return Result(space=space, theta=theta, reals=np.asarray(reals).reshape(*lead, -1), model=model.model)


def test_new_data_are_drawn_through_the_model(tmp_path):
    x = np.arange(1.0, 4.0)
    target = tz.from_numpyro(regression, x, y=2 * x)
    draws = {"slope": np.full((2, 50), 2.0), "on": np.tile([0, 1], (2, 25))}
    result = predicted(target, draws)
    found = result.predictive(draws=10)
    assert {name: value.shape for name, value in found.items()} == {"mean": (2, 10, 3), "y": (2, 10, 3)}
    everything = result.predictive(draws=1000, seed=1)
    assert everything["y"].shape == (2, 50, 3)
    error = (everything["y"] - 2 * x * draws["on"][..., None]) / 0.1
    assert 0.7 < error.std() < 1.3
    assert not (result.predictive(draws=1000, seed=2)["y"] == everything["y"]).any()
    elsewhere = result.predictive(np.array([10.0, 20.0]), y=None, draws=5)
    np.testing.assert_allclose(elsewhere["mean"][:, 1], [[20.0, 40.0]] * 2 if draws["on"][0, 12] else [[0.0, 0.0]] * 2)
    idata = result.to_arviz()
    np.testing.assert_array_equal(idata.observed_data["y"].values, 2 * x)
    assert idata.observed_data["y"].dims == ("row",)
    stored = tz.Result.load(result.save(tmp_path / "run.tz"))
    assert stored.to_arviz().observed_data.equals(idata.observed_data)
    assert stored.model.notes == result.model.notes
    with pytest.raises(UnsupportedError, match="a file holds its data alone"):
        stored.predictive()


def test_predictions_need_a_model_and_counts():
    space = tz.Space(tz.binary(2))
    bare = Result(space=space, theta=np.zeros((2, 5, 2), np.uint8))
    with pytest.raises(UnsupportedError, match="needs a model"):
        bare.predictive()
    model = Model("numpyro", lambda *args: {}, {"y": Observed(np.zeros(3))})
    with pytest.raises(OptionError, match="draws"):
        Result(space=space, theta=np.zeros((2, 5, 2), np.uint8), model=model).predictive(draws=0)
    with pytest.raises(UnsupportedError, match="there are none"):
        Result(space=space, theta=np.zeros((2, 0, 2), np.uint8), model=model).predictive()


def test_data_observed_inside_a_scan_are_asked_for():
    def model(y, n):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))

        def step(carry, seen):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=seen)
            return carry, None

        scan(step, 0, y, length=n)

    target = tz.from_numpyro(model, jnp.zeros(3), 3)
    result = predicted(target, {"mu": np.zeros((1, 4))})
    with pytest.raises(TargetError, match="observed inside a scan"):
        result.predictive()
    assert result.predictive(None, 3)["y"].shape == (1, 4, 3)
