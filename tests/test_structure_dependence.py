"""No coordinate is ever missing from a dependence, and the standard functions are read as sharply as they can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_programs import NUM_DIMS, NUM_VALUES, random_program
from terrazzo.targets.structure import dependence
from terrazzo.targets.structure.dependence import Dependence
from terrazzo.targets.structure.program import Program


def read_sets(function, num_dims):
    program = Program(function, num_dims)
    found = Dependence(program)
    return found.pool.csr(found.of(program.output))


def missing(function, sets, rng, num_dims, num_values, num_tries=60):
    """A (coordinate, element) where a flip of the coordinate changed an element that does not list it, or None."""
    function = jax.jit(function)
    for _ in range(num_tries):
        theta = rng.integers(0, num_values, num_dims).astype(np.int32)
        i = rng.integers(num_dims)
        other = theta.copy()
        other[i] = (other[i] + rng.integers(1, num_values)) % num_values
        before, after = (np.asarray(function(jnp.asarray(t))).ravel() for t in (theta, other))
        is_changed = ~((before == after) | (np.isnan(before) & np.isnan(after)))
        wrong = is_changed & ~np.asarray(sets[:, [i]].todense()).ravel().astype(bool)
        if wrong.any():
            return int(i), int(wrong.argmax())
    return None


def check_seed(seed):
    function = random_program(seed)
    sets = read_sets(function, NUM_DIMS)
    assert missing(function, sets, np.random.default_rng(seed), NUM_DIMS, NUM_VALUES) is None


@pytest.mark.parametrize("seed", range(24))
def test_no_coordinate_is_missing(seed):
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_no_coordinate_is_missing_in_many(seed):
    check_seed(seed)


def test_a_forgotten_dependency_is_seen(monkeypatch):
    """The mutant: an elementwise rule for a primitive that mixes elements."""
    monkeypatch.setattr(dependence, "CUMULATIVE", set())
    monkeypatch.setattr(dependence, "ELEMENTWISE", dependence.ELEMENTWISE | {"cumsum"})
    function = lambda theta: jnp.cumsum(theta).astype(float)
    assert missing(function, read_sets(function, 4), np.random.default_rng(0), 4, 2) is not None


def arities(function, num_dims):
    return sorted(set(np.diff(read_sets(function, num_dims).indptr).tolist()))


TABLE = np.random.default_rng(0).normal(size=(3, 3))
SPARSE = np.eye(9, k=1) + np.eye(9, k=-1)
SHARP = {
    "Ising": (lambda t: (2 * t - 1) * jnp.roll(2 * t - 1, 1), 9, [2]),
    "Potts by ==": (lambda t: (t.reshape(3, 3) == jnp.roll(t.reshape(3, 3), 1, 0)).astype(float), 9, [2]),
    "Potts by one-hot": (lambda t: jax.nn.one_hot(t[1:], 3) * jax.nn.one_hot(t[:-1], 3), 9, [2]),
    "table look-ups": (lambda t: jnp.asarray(TABLE)[t[:-1], t[1:]], 9, [2]),
    "a varying table": (lambda t: jax.nn.log_softmax(jnp.asarray(TABLE)[t[:-1]], -1)[jnp.arange(8), t[1:]], 9, [2]),
    "sparse couplings": (lambda t: jnp.asarray(SPARSE) @ t.astype(float), 9, [1, 2]),
    "masked": (lambda t: jnp.where(jnp.asarray(SPARSE) > 0, t[:, None] * t[None, :], 0), 9, [0, 2]),
    "colouring": (lambda t: jnp.where(t[1:] == t[:-1], -jnp.inf, 0.0), 9, [2]),
    "a cross-shaped kernel": (
        lambda t: jax.lax.conv_general_dilated(
            t.reshape(1, 1, 3, 3).astype(float),
            jnp.asarray([[[[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]]]),
            (1, 1),
            "SAME",
        ),
        9,
        [2, 3, 4],
    ),
    "a scan with a memory of one": (
        lambda t: jax.lax.scan(lambda c, x: (x, jnp.asarray(TABLE)[c, x]), t[0], t[1:])[1],
        9,
        [2],
    ),
    "a count": (lambda t: jax.ops.segment_sum(t, jnp.array([0, 0, 0, 1, 1, 1, 2, 2, 2]), 3), 9, [3]),
    "a zero times something that may be infinite": (lambda t: jnp.zeros(9) * jnp.log(t.astype(float)), 9, [1]),
    "a zero times a number": (lambda t: jnp.zeros(9) * t.astype(float), 9, [0]),
    "logistic": (lambda t: jax.nn.log_sigmoid(jnp.asarray(TABLE) @ t[:3].astype(float)), 9, [3]),
}


@pytest.mark.parametrize("name", SHARP)
def test_standard_functions_are_read_sharply(name):
    function, num_dims, expected = SHARP[name]
    assert arities(function, num_dims) == expected


@pytest.mark.parametrize("side", [64, 256])
def test_a_large_lattice_is_read(side):
    """The sum of all sites depends on all of them; sets that were kept dense would need 34 GB for 65,536 sites."""

    def ising(theta):
        spins = 2.0 * theta.reshape(side, side).astype(float) - 1.0
        return jnp.sum(spins * (jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1)))

    assert arities(ising, side * side) == [side * side]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_that_counts_its_steps_is_read_as_one(reverse):
    """Counters and keys in a carry are known at every step; what is left of it is only handed on."""

    def function(theta):
        noise = jax.random.key(3)

        def step(carry, x):
            i, key, before = carry
            key, part = jax.random.split(key)
            here = theta[i].astype(float)
            value = here * before + x * here + 0.1 * jax.random.normal(part) * here
            return (i + 1, key, here), value

        n = theta.shape[0]
        start = (jnp.asarray(0), noise, jnp.asarray(0.5))
        (count, _, last), values = jax.lax.scan(step, start, jnp.linspace(0.0, 1.0, n), reverse=reverse)
        return values.sum() + last * count.astype(float)

    sizes = [len(Program(function, n).equations) for n in (6, 60)]
    assert sizes[0] == sizes[1]  # unrolled, it would grow with the loop
    program, rng = Program(function, 6), np.random.default_rng(0)
    for theta in rng.integers(0, 3, (8, 6)).astype(np.int32):
        (found,) = program.evaluate(jnp.asarray(theta), [program.output])
        np.testing.assert_allclose(found, function(jnp.asarray(theta)), rtol=1e-12)
    assert missing(function, read_sets(function, 6), rng, 6, 3) is None


def test_a_carry_that_follows_theta_is_not_taken_for_known():
    def function(theta):
        step = lambda c, x: ((c[0] + 1, jnp.sin(c[1] + x) + c[0].astype(float)), c[1])
        (_, last), values = jax.lax.scan(step, (jnp.asarray(0), jnp.asarray(0.0)), theta.astype(float))
        return values.sum() + last

    theta = jnp.asarray([1, 0, 2, 1], jnp.int32)
    program = Program(function, 4)
    (found,) = program.evaluate(theta, [program.output])
    np.testing.assert_allclose(found, function(theta), rtol=1e-12)
    assert missing(function, read_sets(function, 4), np.random.default_rng(1), 4, 3) is None
