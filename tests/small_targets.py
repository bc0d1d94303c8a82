"""Random asymmetric targets on tiny spaces, as modules: one compilation serves all targets of a space."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.errors import UnsupportedError

SPACES = {
    "mixed": tz.Space(a=tz.binary(), b=tz.categorical(3), c=tz.integers(-1, 2)),
    "ordered": tz.Space(a=tz.integers(-1, 1), b=tz.binary(), c=tz.integers(0, 3)),
    "binary": tz.Space(tz.binary(4)),
}


class Table(eqx.Module):
    """log pi = a smooth part, which has a gradient, and an arbitrary table (with impossible states), which has none."""

    linear: jax.Array
    pairs: jax.Array
    table: jax.Array
    rows: jax.Array
    space: tz.Space = eqx.field(static=True)

    def __call__(self, values):
        flat = jnp.concatenate([jnp.atleast_1d(v) for v in jax.tree.leaves(values)])
        codes = flat - jnp.asarray(self.space._low).astype(flat.dtype)
        real = codes.astype(jnp.result_type(float))
        smooth = self.linear @ real + 0.5 * real @ self.pairs @ real
        return smooth + self.table[self.space.index(jnp.round(real).astype(jnp.int32))]

    def one_hot(self, rows):
        """log pi at one-hot rows, with the gradient of something else: moves must be exact whatever it says."""
        exact = self(self.space.unflatten(jnp.argmax(rows, axis=1).astype(jnp.int32)))
        other = jnp.sum(self.rows * rows) + jnp.sum(self.rows[::-1] * rows) ** 2
        return jax.lax.stop_gradient(exact) + (other - jax.lax.stop_gradient(other))


def draw(space, seed, *, num_impossible=0, scale=1.0):
    """The arrays of one random target."""
    rng = np.random.default_rng(seed)
    d = space.num_dims
    pairs = rng.normal(size=(d, d)) * 0.4 * scale
    table = rng.normal(size=space.num_states) * 0.7 * scale
    table[rng.choice(space.num_states, num_impossible, replace=False)] = -np.inf
    return Table(
        jnp.asarray(rng.normal(size=d) * 0.7 * scale),
        jnp.asarray(pairs + pairs.T),
        jnp.asarray(table),
        jnp.asarray(rng.normal(size=(d, space.max_size)) * 0.4),
        space,
    )


@cache
def small_target(name, seed=0, **options):
    fn = draw(SPACES[name], seed, **options)
    return tz.Target(fn, SPACES[name], one_hot_log_prob=fn.one_hot)


def stacked_targets(target, num_targets=20):
    """The arrays of many targets of one space, to replace those of `target`; most have impossible states."""
    draws = [
        draw(target.space, 100 + i, num_impossible=(0, 1, 3)[i % 3], scale=1.0 + i % 2) for i in range(num_targets)
    ]
    pattern = eqx.filter(target, eqx.is_array)
    many = [with_table(pattern, fn) for fn in draws]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)


def with_table(target, fn):
    """The target with the arrays of another `Table`."""
    get = lambda t: (*jax.tree.leaves(t.log_prob_fn), *jax.tree.leaves(t.one_hot_fn))
    arrays = jax.tree.leaves(eqx.filter(fn, eqx.is_array))
    assert len(get(eqx.filter(target, eqx.is_array))) == 2 * len(arrays)
    return eqx.tree_at(get, eqx.filter(target, eqx.is_array), (*arrays, *arrays))


def log_table(target):
    """log pi of every state."""
    return np.asarray(jax.jit(jax.vmap(target.log_prob))(jnp.asarray(target.space.enumerate())))


@cache
def suitable(spec):
    """The richest of the tiny spaces on which a sampler works."""
    for name in SPACES:
        target = small_target(name)
        try:
            if spec.check is not None:
                spec.check(target)
            return name
        except UnsupportedError:
            continue
    raise AssertionError(f"{spec.name} works on none of the tiny spaces")
