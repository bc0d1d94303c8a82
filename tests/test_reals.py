"""Real variables: their bijections, spaces that mix them with discrete ones, and targets on such spaces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import GradientError, SpaceError, StartError, TargetError
from terrazzo.spaces import Configuration

VARIABLES = {
    "free": tz.real((2, 2)),
    "above": tz.real(low=-1.0, shape=3),
    "below": tz.real(high=2.0, shape=3),
    "between": tz.real(-1.0, 4.0, shape=3),
    "simplex": tz.simplex(4),
    "simplices": tz.simplex(3, shape=2),
    "ordered": tz.ordered(4),
    "two ordered": tz.ordered(3, shape=2),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_bijections_return_and_their_log_determinants_are_those_of_autodiff(name):
    bijection = VARIABLES[name].bijection
    y = jnp.asarray(np.random.default_rng(0).normal(size=bijection.unconstrained_shape) * 1.5)
    x = bijection.constrain(y)
    assert x.shape == bijection.shape
    np.testing.assert_allclose(bijection.unconstrain(x), y, rtol=1e-9, atol=1e-9)

    def free_values(flat):
        value = bijection.constrain(flat.reshape(bijection.unconstrained_shape))
        return (value[..., :-1] if "simplex" in name or "simplices" in name else value).reshape(-1)

    jacobian = jax.jacfwd(free_values)(y.reshape(-1))
    np.testing.assert_allclose(bijection.log_jacobian(y), np.linalg.slogdet(jacobian)[1], rtol=1e-10, atol=1e-10)


def test_values_lie_in_the_support():
    y = jnp.asarray(np.random.default_rng(1).normal(size=(50, 3)) * 3)
    for row in y:
        assert (VARIABLES["above"].bijection.constrain(row) > -1).all()
        assert (VARIABLES["below"].bijection.constrain(row) < 2).all()
        x = VARIABLES["simplex"].bijection.constrain(row)
        assert (x > 0).all()
        assert abs(float(x.sum()) - 1) < 1e-12
        assert (np.diff(tz.ordered(3).bijection.constrain(row)) > 0).all()


SPACE = tz.Space(
    scale=tz.real(low=0.0), label=tz.categorical(["a", "b"], shape=3), weights=tz.simplex(3), count=tz.integers(2, 5)
)


def test_a_mixed_space_knows_its_parts():
    assert (SPACE.num_dims, SPACE.num_reals, SPACE.num_real_values) == (4, 3, 4)
    assert SPACE.discrete.names == ("label", "count")
    assert SPACE.discrete.discrete is SPACE.discrete
    assert tz.Space(x=tz.binary(2)).discrete.names == ("x",)
    theta, y = jnp.array([0, 1, 1, 3], jnp.int32), jnp.zeros(3)
    values = SPACE.unflatten(theta, y)
    assert list(values) == ["scale", "label", "weights", "count"]
    assert float(values["scale"]) == 1.0
    assert int(values["count"]) == 5
    np.testing.assert_allclose(values["weights"], np.full(3, 1 / 3))
    np.testing.assert_allclose(SPACE.real_values(y), [1, 1 / 3, 1 / 3, 1 / 3])
    assert tz.Space(**dict(SPACE.variables)) == SPACE
    assert hash(SPACE) == hash(tz.Space(**dict(SPACE.variables)))


def test_users_values_are_encoded():
    values = {"scale": 2.0, "label": ["a", "b", "b"], "weights": [0.2, 0.3, 0.5], "count": 4}
    np.testing.assert_array_equal(SPACE.encode(values), [0, 1, 1, 2])
    y = SPACE.encode_reals(values)
    back = SPACE.unflatten(jnp.asarray(SPACE.encode(values)), jnp.asarray(y))
    np.testing.assert_allclose(back["weights"], values["weights"])
    with pytest.raises(SpaceError, match="outside"):
        SPACE.encode_reals({**values, "scale": -1.0})
    with pytest.raises(SpaceError, match="outside the simplex"):
        SPACE.encode_reals({**values, "weights": [0.5, 0.3, 0.5]})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tz.real(1.0, 0.0), "must be above"),
        (lambda: tz.real(0.5), "cannot read"),
        (lambda: tz.real(low="x"), "must be a number"),
        (lambda: tz.real(3, shape=3), "given twice"),
        (lambda: tz.real(-1), "positive integers"),
        (lambda: tz.simplex(1), "at least 2"),
        (lambda: tz.real(bijection=3), "needs constrain"),
        (lambda: tz.real(2, dims=("a", "b")), "does not name"),
    ],
)
def test_bad_variables_are_typed_errors(make, text):
    with pytest.raises(SpaceError, match=text):
        make()


def _log_prob(v):
    k = v["k"].astype(v["x"].dtype)
    return -0.5 * v["x"] ** 2 * (1 + k) - 0.3 * k - v["s"]


MIXED = tz.Space(k=tz.binary(), x=tz.real(), s=tz.real(low=0.0))


def test_a_mixed_target_is_a_family_of_discrete_ones():
    target = tz.Target(_log_prob, MIXED)
    assert target.has_real_gradient
    y = jnp.array([0.7, -0.2])
    s = np.exp(-0.2)
    for k in (0, 1):
        theta = jnp.array([k], jnp.int32)
        expected = -0.5 * 0.49 * (1 + k) - 0.3 * k - s
        assert float(target.given(y).log_prob(theta)) == pytest.approx(expected)
        assert float(target.log_density(theta, y)) == pytest.approx(expected - 0.2)
    slope = jax.grad(target.log_density, argnums=1)(jnp.array([1], jnp.int32), y)
    np.testing.assert_allclose(slope, [-1.4, -s + 1], rtol=1e-6)
    assert target.given(y).space == MIXED.discrete


def test_functions_that_differ_in_data_share_a_computation():
    one, two = (
        tz.Target(lambda v, a=a: -a * v["x"] ** 2 - v["s"] * jnp.where(v["k"] > 0, 2.0, 1.0), MIXED) for a in (0.3, 0.4)
    )
    assert one.compilation_group == two.compilation_group


def test_purely_real_and_black_box_targets():
    lone = tz.Target(lambda x: -0.5 * jnp.sum(x**2), tz.real(3))
    assert float(lone.log_density(jnp.zeros(0, jnp.int32), jnp.ones(3))) == -1.5
    box = tz.Target(tz.blackbox(lambda v: -0.5 * float(v["x"]) ** 2 - float(v["s"])), MIXED)
    assert not box.has_real_gradient
    both = jax.vmap(box.log_density)(jnp.zeros((2, 1), jnp.int32), jnp.array([[1.0, 0.0], [2.0, 0.0]]))
    np.testing.assert_allclose(both, [-1.5, -3.0])


def test_starts_are_possible():
    target = tz.Target(lambda v: jnp.where(v["x"] > 0, -v["x"] - v["s"], -jnp.inf), MIXED)
    start = target.possible_starts(jax.random.key(0), 5)
    assert isinstance(start, Configuration)
    assert (np.asarray(start.reals)[:, 0] > 0).all()
    never = tz.Target(lambda v: jnp.where(v["x"] > 9, 0.0, -jnp.inf) - v["s"], MIXED)
    with pytest.raises(StartError, match="random configurations"):
        never.possible_starts(jax.random.key(0), 2)


@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (lambda v: v["x"] + jnp.zeros(2), TargetError, "returned shape"),
        (lambda v: jnp.log(v["x"] - 100.0) - v["s"], TargetError, "returned nan"),
        (lambda v: jnp.sqrt(jnp.abs(v["x"])) - v["s"], GradientError, "not finite"),
        (lambda v: float(v["x"]), TargetError, "cannot be traced"),
    ],
)
def test_bad_functions_are_typed_errors(fn, error, text):
    with pytest.raises(error, match=text):
        tz.Target(fn, MIXED)


def test_hints_are_refused():
    with pytest.raises(TargetError, match="not for spaces with real"):
        tz.Target(_log_prob, MIXED, colours=[0])
