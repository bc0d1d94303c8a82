"""Functions that differ only in their data are one computation: they share compiled code, which is freed in the end."""

import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.engine import kernels as running
from terrazzo.errors import TargetError
from terrazzo.runtime import compilation
from terrazzo.targets.identity import COMPUTATION, DATA, contents_digest, shown, target_identity
from terrazzo.targets.tracing import TracedFunction, in_this_precision, traced

THETA = jnp.zeros(4, jnp.int32)
POINT = jnp.array([1, 0, 2, 1], jnp.int32)
RNG = np.random.default_rng(0)


def linear(weights, scale):
    return lambda t: scale * jnp.sum(t.astype(float) * jnp.asarray(weights, float))


def inner_jit(weights, scale):
    return lambda t: jax.jit(lambda x: scale * (x.astype(float) * jnp.asarray(weights)).sum())(t)


def looping(weights, scale):
    def log_prob(t):
        table = jnp.asarray(weights)
        total, _ = jax.lax.scan(lambda c, i: (c + table[i] * t[i].astype(float), None), 0.0, jnp.arange(4))
        return jnp.where(t[0] > 5, -jnp.inf, jax.nn.relu(total) * scale)

    return log_prob


def as_partial(weights, scale):
    return functools.partial(lambda w, s, t: s * (t.astype(float) @ w), jnp.asarray(weights), scale)


@pytest.mark.parametrize("make", [linear, inner_jit, looping, as_partial])
def test_data_are_no_part_of_the_computation(make):
    functions = [make(RNG.normal(size=4), scale) for scale in (0.31, 1.7)]
    ours = [traced(f, THETA) for f in functions]
    assert all(isinstance(f, TracedFunction) for f in ours)
    assert ours[0].computation == ours[1].computation
    assert hash(ours[0].computation) == hash(ours[1].computation)
    for function, found in zip(functions, ours, strict=True):
        np.testing.assert_allclose(found(POINT), function(POINT), rtol=1e-14)
        real = POINT.astype(float)
        np.testing.assert_allclose(jax.grad(found)(real), jax.grad(function)(real), rtol=1e-14)


def test_data_are_held_once():
    big = RNG.normal(size=(4, 1000))
    found = traced(lambda t: (t.astype(float) @ jnp.asarray(big)).sum(), THETA)
    assert set(found.computation.forms) == {"integer", "real"}
    assert len(found.constants) == 1


def test_other_computations_differ():
    weights = np.arange(4.0)
    keys = {
        traced(f, THETA).computation.key
        for f in (
            linear(weights, 0.3),
            lambda t: jnp.sum(t.astype(float) / 0.3 * jnp.asarray(weights, float)),
            lambda t: jnp.sum(t.astype(float) ** 2 * jnp.asarray(weights, float)),
            lambda t: jnp.sum(t.astype(float) ** 3 * jnp.asarray(weights, float)),
            lambda t: jnp.sum(t.astype(float) * jnp.asarray(weights.astype(np.float32)).astype(float)),
        )
    }
    assert len(keys) == 5


def test_what_a_trace_hides_is_left_alone():
    """A callback, or a derivative rule over its own data, would be shared with functions that it does not belong to."""
    calls_host = lambda t: jax.pure_callback(lambda v: np.sum(v) * 1.0, jax.ShapeDtypeStruct((), float), t)
    assert not isinstance(traced(calls_host, THETA), TracedFunction)

    def with_rule(slope):
        @jax.custom_jvp
        def same(x):
            return x

        same.defjvp(lambda primals, tangents: (primals[0], tangents[0] * jnp.asarray(slope)))
        return lambda t: same(t.astype(float)).sum()

    hidden = with_rule(np.arange(4.0))
    assert not isinstance(traced(hidden, THETA), TracedFunction)
    assert isinstance(traced(lambda t: jax.nn.relu(t.astype(float)).sum(), THETA), TracedFunction)


def test_targets_share_compiled_code():
    options = {"seed": 0, "sampler": "gibbs", "draws": 5, "chains": 2, "warmup": 5, "progress": "off"}
    first = tz.sample(linear(RNG.normal(size=4), 0.7), tz.binary(4), **options)
    before = running.draw.num_compiled()
    for scale in (0.3, 0.4):
        result = tz.sample(linear(weights := RNG.normal(size=4), scale), tz.binary(4), **options)
        np.testing.assert_allclose(result.log_prob, scale * (result.theta @ weights), rtol=1e-12)
    assert running.draw.num_compiled() == before
    assert first.theta.shape == (2, 5, 4)


def test_a_target_follows_the_precision():
    with jax.enable_x64(False):
        target = tz.Target(lambda t: jnp.sum(t.astype(float)) * (1.0 / 3.0), tz.binary(3))
        result = tz.sample(target, seed=0, sampler="gibbs", draws=5, precision="float64", progress="off")
        assert in_this_precision(target) == target
    assert result.log_prob.dtype == np.float64
    np.testing.assert_array_equal(result.log_prob, result.theta.sum(2) * (1.0 / 3.0))


# ---- identity


class Weighted(eqx.Module):
    weights: jax.Array

    def __call__(self, theta):
        return jnp.sum(theta.astype(float) * self.weights)


HINTED = {"site_logits": lambda t, i: jnp.zeros(2), "colours": [0, 1, 0, 1]}


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (linear(np.ones(4), 0.3), linear(np.ones(4), 0.3), (True, True)),
        (linear(np.ones(4), 0.3), linear(np.ones(4), 0.4), (True, False)),
        (linear(np.ones(4), 0.3), linear(np.eye(4)[0], 0.3), (True, False)),
        (linear(np.ones(4), 0.3), lambda t: jnp.cos(t.sum().astype(float)), (False, False)),
        (Weighted(jnp.ones(4)), Weighted(jnp.ones(4)), (True, True)),
        (Weighted(jnp.ones(4)), Weighted(jnp.zeros(4)), (True, False)),
        (tz.blackbox(lambda t: 1.0), tz.blackbox(lambda t: 1), (True, True)),
        (tz.blackbox(lambda t: 1.0), tz.blackbox(lambda t: 2.0), (True, False)),
        (tz.blackbox(lambda t: 1.0, name="a"), tz.blackbox(lambda t: 1.0, name="b"), (False, True)),
    ],
)
def test_identity(one, two, same):
    found = [target_identity(tz.Target(f, tz.binary(4), probe=False)) for f in (one, two)]
    assert tuple(found[0][name] == found[1][name] for name in (COMPUTATION, DATA)) == same


def test_hints_belong_to_the_identity():
    plain, hinted, coloured = (
        target_identity(tz.Target(linear(np.ones(4), 0.3), tz.binary(4), **hints, probe=False))
        for hints in ({}, HINTED, {"colours": [0, 1, 0, 1]})
    )
    assert len({found[COMPUTATION] for found in (plain, hinted, coloured)}) == 3


def test_digests_see_all_of_an_array_and_of_a_function():
    """The text of an array leaves most of it out."""
    one, two = np.zeros(5000), np.zeros(5000)
    two[2500] = 1.0
    assert repr(one) == repr(two)
    assert shown(one) != shown(two)
    assert shown({"a": [one]}) != shown({"a": [two]})
    make = lambda x: lambda r: r * x
    assert contents_digest(make(1.0)) == contents_digest(make(1.0)) != contents_digest(make(2.0))


# ---- a long session


def in_use():
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return compilation.num_maps(), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


SHAPES = (jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.arctan, jnp.square, jnp.abs)


def session(num_calls, num_warm):
    """Maps and MiB at their highest, in the first calls and after them."""
    peaks = [(0, 0.0), (0, 0.0)]
    for i in range(num_calls):
        weights, shape = RNG.normal(size=5), SHAPES[i % len(SHAPES)]
        power = i // len(SHAPES) % 11 + 1 if i % 3 == 0 else 1  # some computations are met once only
        log_prob = lambda t, w=weights, f=shape, p=power: f(jnp.sum(t.astype(float) * jnp.asarray(w)) ** p / 64.0**p)
        tz.sample(log_prob, tz.binary(5), seed=i, sampler="gibbs", draws=4, chains=2, warmup=4, progress="off")
        late = int(i >= num_warm)
        peaks[late] = tuple(max(a, b) for a, b in zip(peaks[late], in_use(), strict=True))
    return peaks


def is_flat(peaks):
    early, late = peaks
    return late[0] <= 1.1 * early[0] and late[1] <= 1.1 * early[1] + 50


@pytest.mark.skipif(not compilation.MAPS.exists(), reason="needs Linux's /proc")
def test_many_closures_in_one_process():
    assert is_flat(session(25, 10))


@pytest.mark.slow
@pytest.mark.skipif(not compilation.MAPS.exists(), reason="needs Linux's /proc")
def test_three_hundred_closures_in_one_process():
    assert is_flat(session(300, 10))


class OfTarget(eqx.Module):
    """Belongs to a target."""

    compilation_group = "a target"


def test_code_of_one_target_is_freed_where_maps_run_short(monkeypatch):
    """Any number of samplers on one target: what was used longest ago goes first, what has just run stays."""
    first, second = compilation.jit(lambda of, x: x + 1), compilation.jit(lambda of, x: 2 * x)
    kept = lambda: (first.num_compiled(), second.num_compiled())
    others = [0]
    monkeypatch.setattr(compilation, "_groups", compilation._Groups())
    monkeypatch.setattr(compilation, "COUNT_EVERY", 1)
    monkeypatch.setattr(compilation, "num_maps", lambda: others[0] + 10_000 * sum(kept()))
    for size in (1, 2, 3):
        first(OfTarget(), np.zeros(size))
    assert kept() == (3, 0)
    second(OfTarget(), np.zeros(1))
    assert kept() == (0, 1)
    others[0] = 50_000  # what belongs to nobody here: code is freed once, and then as it grows
    second(OfTarget(), np.zeros(2))
    assert kept() == (0, 0)
    second(OfTarget(), np.zeros(3))
    assert kept() == (0, 1)
    second(OfTarget(), np.zeros(4))
    assert kept() == (0, 0)


CHANGED = {
    "product": lambda theta, weights: (theta * weights).sum(),
    "array": lambda theta, weights: jnp.sum(jnp.asarray(weights) * theta),
    "loop": lambda theta, weights: jax.lax.fori_loop(0, 6, lambda i, s: s + jnp.asarray(weights)[i] * theta[i], 0.0),
}


@pytest.mark.parametrize("sampler", ["systematic_gibbs", "auto"])
@pytest.mark.parametrize("form", CHANGED)
@pytest.mark.parametrize("is_double", [False, True])
def test_data_changed_in_place_is_read_again(form, sampler, is_double):
    """JAX keeps what it traced of a function object; a second call must see the data as they are now."""
    weights = np.full(6, 2.0)

    def log_prob(theta):
        return CHANGED[form](theta.astype(float), weights)

    means, results = [], []
    for value in (2.0, -2.0):
        weights[:] = value
        with jax.enable_x64(is_double):
            results.append(tz.sample(log_prob, tz.binary(6), seed=0, sampler=sampler, draws=500, progress="off"))
        means.append(results[-1].theta.mean())
    exact = 1 / (1 + np.exp(-2.0))
    np.testing.assert_allclose(means, [exact, 1 - exact], atol=0.03)


def test_hidden_data_changed_in_place_are_refused():
    """What a function that calls the host holds is compiled in."""
    weights = np.full(6, 2.0)

    def log_prob(theta):
        x = theta.astype(float)
        nothing = jax.pure_callback(lambda t: 0 * t, jax.ShapeDtypeStruct((), x.dtype), x[0], vmap_method="sequential")
        return jnp.sum(jnp.asarray(weights) * x) + nothing

    for _ in range(2):
        tz.Target(log_prob, tz.binary(6))
    weights[:] = -2.0
    with pytest.raises(TargetError, match=r"changed in place(?s:.*)copy"):
        tz.Target(log_prob, tz.binary(6))


def test_terms_changed_in_place_are_read_again():
    weights = np.full(6, 2.0)
    for value in (2.0, -2.0):
        weights[:] = value
        with jax.enable_x64(False):
            target = tz.Target(lambda theta: theta.astype(float) * weights, tz.binary(6), terms=True)
            assert float(target.log_prob(jnp.ones(6, jnp.int32))) == 6 * value
