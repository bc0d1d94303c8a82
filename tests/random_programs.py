"""Random programs of a configuration, from a seed: what a reader of functions has to get right."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NUM_DIMS, NUM_VALUES = 6, 3


def real(x):
    return jnp.clip(jnp.nan_to_num(jnp.asarray(x).astype(float)), -20.0, 20.0)


def index_of(x, high):
    """Integers below `high`, from anything."""
    return jnp.abs(jnp.round(real(x))).astype(jnp.int32) % high


def flat(x):
    return real(x).ravel()


def make_op(rng):
    """`(x, y) -> array`, with all its constants drawn beforehand; x and y are any two arrays made so far."""
    seed = int(rng.integers(2**31))

    def constant(shape, share_of_zeros=0.4):
        draws = np.random.default_rng(seed)
        return jnp.asarray(draws.normal(size=shape) * (draws.random(shape) > share_of_zeros))

    def ints(shape, high):
        return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)

    same = lambda x, y: (flat(x)[: min(x.size, y.size)], flat(y)[: min(x.size, y.size)])
    number = ints((), 5)

    def rows(x):
        x = flat(x)
        return x.reshape(2, -1) if x.size % 2 == 0 else x.reshape(1, -1)

    def image(x):
        return jnp.resize(flat(x), (1, 1, 4, 4))

    def accumulate(x, y):
        table = constant((NUM_VALUES, NUM_VALUES), 0.0)
        states = index_of(flat(x), NUM_VALUES)
        step = lambda c, s: ((s, c[1] + table[c[0], s]), c[1] if number % 2 else table[s, c[0]])
        (last, total), ys = lax.scan(step, (states[0], jnp.zeros(())), states, reverse=bool(number % 3 == 0))
        return jnp.concatenate([total[None], ys, last.astype(float)[None]])

    def two_back(x, y):
        step = lambda c, s: ((s, c[0], c[2] + s * c[1]), None)
        return lax.scan(step, (jnp.zeros(()), jnp.zeros(()), jnp.zeros(())), flat(x))[0][2]

    def loop(x, y):
        return lax.while_loop(
            lambda c: c[0] < index_of(flat(y)[0], 3), lambda c: (c[0] + 1, c[1] * 0.5 + 1.0), (0, flat(x))
        )[1]

    ops = [
        lambda x, y: jnp.sin(real(x)),
        lambda x, y: jnp.floor(real(x) * 0.5),
        lambda x, y: jnp.exp(real(x) * 0.1),
        lambda x, y: real(x) ** 2,
        lambda x, y: jnp.add(*same(x, y)),
        lambda x, y: jnp.multiply(*same(x, y)),
        lambda x, y: jnp.equal(*same(x, y)),
        lambda x, y: jnp.where(flat(x) > 0.3, flat(x), -jnp.inf),
        lambda x, y: jnp.where(constant(flat(x).shape) > 0, flat(x), 1.0),
        lambda x, y: flat(x) * constant(flat(x).shape),
        lambda x, y: constant((4, x.size)) @ flat(x),
        lambda x, y: flat(x) @ constant((x.size, 3)),
        lambda x, y: rows(x) @ constant((rows(x).shape[1], 2), 0.7),
        lambda x, y: jnp.einsum("ij,kj->ik", rows(x), rows(x)),
        lambda x, y: jnp.outer(flat(x)[:4], flat(y)[:3]),
        lambda x, y: jnp.roll(rows(x), int(number), axis=1),
        lambda x, y: rows(x).T,
        lambda x, y: rows(x)[:, ::-1],
        lambda x, y: flat(x)[int(number) % x.size :: 2],
        lambda x, y: jnp.cumsum(flat(x)),
        lambda x, y: lax.cumsum(rows(x), axis=1, reverse=True),
        lambda x, y: jnp.sort(rows(x), axis=1),
        lambda x, y: jnp.argsort(flat(x)),
        lambda x, y: rows(x).sum(axis=int(number) % 2),
        lambda x, y: rows(x).max(axis=1),
        lambda x, y: jnp.prod(rows(x), axis=0),
        lambda x, y: jnp.argmax(rows(x), axis=1),
        lambda x, y: (flat(x) > 0).all(),
        lambda x, y: constant((NUM_VALUES, NUM_VALUES))[index_of(flat(x)[:1], 3), index_of(flat(y)[:3], 3)],
        lambda x, y: flat(x)[ints(5, x.size)],
        lambda x, y: jnp.take(flat(x), ints(4, 2 * x.size), mode="fill", fill_value=0.0),
        lambda x, y: flat(x)[index_of(flat(y), x.size)],
        lambda x, y: rows(x)[:, index_of(flat(y)[0], rows(x).shape[1])],
        lambda x, y: rows(x)[np.arange(rows(x).shape[0]), index_of(flat(y)[: rows(x).shape[0]], rows(x).shape[1])],
        lambda x, y: jnp.take_along_axis(rows(x), index_of(rows(x), rows(x).shape[1]), axis=1),
        lambda x, y: lax.dynamic_slice(flat(x), (index_of(flat(y)[0], x.size),), (max(x.size // 2, 1),)),
        lambda x, y: lax.dynamic_update_slice(flat(x), flat(y)[:1], (index_of(flat(y)[-1], x.size),)),
        lambda x, y: lax.dynamic_update_slice(flat(x), flat(y)[:1], (number % x.size,)),
        lambda x, y: flat(x).at[ints(2, x.size)].set(flat(y)[0]),
        lambda x, y: flat(x).at[index_of(flat(y), x.size)].set(1.0),
        lambda x, y: jnp.zeros((x.size, 3)).at[np.arange(x.size), index_of(flat(x), 3)].set(2.0),
        lambda x, y: flat(x).at[index_of(flat(y), x.size)].add(flat(y)),
        lambda x, y: jax.ops.segment_sum(flat(x), ints(x.size, 4), 4),
        lambda x, y: jnp.bincount(index_of(flat(x), 4), length=4),
        lambda x, y: jax.ops.segment_max(flat(x), ints(x.size, 3), 3),
        lambda x, y: lax.conv_general_dilated(image(x), constant((2, 1, 3, 3)), (1, 1), "SAME"),
        lambda x, y: lax.conv_general_dilated(image(x), constant((1, 1, 2, 2)), (2, 1), "VALID", rhs_dilation=(1, 2)),
        lambda x, y: lax.cond(flat(x)[0] > 0.5, lambda: flat(y).sum(), lambda: flat(x)[-1]),
        lambda x, y: lax.switch(index_of(flat(x)[0], 3), [lambda v: v, lambda v: -v, lambda v: v * 0.0], flat(y)),
        accumulate,
        two_back,
        loop,
        lambda x, y: lax.scan(lambda c, v: (0.5 * c + v, jnp.sin(c)), 0.0, flat(x))[1],
        lambda x, y: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + flat(y)[0], flat(x)),
        lambda x, y: jax.nn.one_hot(index_of(flat(x), 3), 3),
        lambda x, y: jax.nn.log_softmax(rows(x), axis=1),
        lambda x, y: jax.nn.relu(flat(x)),
        lambda x, y: jax.checkpoint(lambda v: jnp.cos(v) * v)(flat(x)),
        lambda x, y: jnp.pad(rows(x), ((0, 1), (1, 0))),
        lambda x, y: jnp.concatenate([flat(x), jnp.ones(2), flat(y)]),
        lambda x, y: jnp.stack(jnp.split(jnp.resize(flat(x), 4), 2)),
        lambda x, y: jnp.abs(jnp.fft.fft(flat(x))),
        lambda x, y: lax.top_k(flat(x), 1)[0],
        lambda x, y: jnp.linalg.det(jnp.resize(flat(x), (2, 2)) + 3.0 * jnp.eye(2)),
        lambda x, y: index_of(flat(x), 4) // 2 + (index_of(flat(x), 7) & 3),
    ]  # fmt: skip
    return ops[int(rng.integers(len(ops)))]


def random_program(seed, num_ops=8):
    """`theta -> vector`: all arrays that a random program makes, after one another."""
    rng = np.random.default_rng(seed)
    ops = [(make_op(rng), rng.integers(0, 2**31, 2)) for _ in range(num_ops)]

    def program(theta):
        made = [theta, theta[: NUM_DIMS // 2].astype(float) - 0.7]
        for op, (first, second) in ops:
            out = jnp.asarray(op(made[first % len(made)], made[second % len(made)]))
            made.append(out if 0 < out.size <= 64 else jnp.resize(flat(out), 8))
        return jnp.concatenate([flat(x) for x in made[2:]])

    return program
