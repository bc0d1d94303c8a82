"""All discrete randomness of the discrete kernels.

Kernels call these functions through the module. So the tests can put enumerations in their place and sum a kernel's
exact transition matrix over all outcomes, while the kernel itself is the code that users run.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Key = Any  # a typed JAX key, or what stands in for one in the tests
FEW, MANY = 6, 64  # from few on, categorical draws by running sums are cheapest; of many, in blocks


def split(key: Key, num: int = 2) -> Any:
    """`num` independent keys."""
    return jax.random.split(key, num)


def sanitise(logits: Float[Array, "*rows n"], valid: Any = None) -> Float[Array, "*rows n"]:
    """Log-weights that define a distribution whatever came in.

    NaN counts as impossible; if some weights are +inf, they share the probability equally; if nothing is possible
    (a chain on an impossible configuration), every valid outcome is equally likely.
    """
    logits = jnp.where(jnp.isnan(logits), -jnp.inf, logits)
    top = jnp.max(logits, axis=-1, keepdims=True)
    zero = jnp.zeros_like(logits)
    everywhere = zero if valid is None else jnp.where(jnp.asarray(valid), zero, -jnp.inf)
    infinite = jnp.where(logits == jnp.inf, zero, -jnp.inf)
    return jnp.where(top == jnp.inf, infinite, jnp.where(top == -jnp.inf, everywhere, logits))


def log_normalised(logits: Float[Array, "*rows n"], valid: Any = None) -> Float[Array, "*rows n"]:
    """Sanitised log-weights as log-probabilities."""
    clean = sanitise(logits, valid)
    if clean.shape[-1] == 2:  # sums over a last axis of two are slow
        gap = clean[..., 1] - clean[..., 0]
        tail = jnp.log1p(jnp.exp(-jnp.abs(gap)))
        return jnp.stack([jnp.minimum(-gap, 0.0) - tail, jnp.minimum(gap, 0.0) - tail], axis=-1)
    return jax.nn.log_softmax(clean, axis=-1)


def cumulative_log_sum(x: Float[Array, " n"], *, reverse: bool = False, block: int = 16) -> Float[Array, " n"]:
    """The log of the running sum of exp(x), from the front or from the back, without under- or overflow.

    In blocks: running sums inside each block, then over the blocks. (`lax.cumlogsumexp` is ten times slower on a CPU.)

    >>> cumulative_log_sum(jnp.log(jnp.arange(1.0, 4.0)))[-1].round(4) == jnp.log(6.0).round(4)
    Array(True, dtype=bool)
    """
    if reverse:
        return cumulative_log_sum(x[::-1], block=block)[::-1]
    num = x.shape[0]
    block = min(block, num)
    rows = jnp.pad(x, (0, -num % block), constant_values=-jnp.inf).reshape(-1, block)
    inside = _triangular_log_sum(rows, np.tri(block, dtype=bool))
    if rows.shape[0] > 1:
        before = _triangular_log_sum(inside[None, :, -1], np.tri(rows.shape[0], k=-1, dtype=bool))[0]
        inside = jnp.logaddexp(inside, before[:, None])
    return inside.reshape(-1)[:num]


def _triangular_log_sum(rows: Float[Array, "row n"], is_in: np.ndarray) -> Float[Array, "row n"]:
    """For each row, the log of the sums of exp over the entries that each line of `is_in` names."""
    terms = jnp.where(jnp.asarray(is_in), rows[:, None, :], -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(terms, axis=-1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(jnp.sum(jnp.exp(terms - top), axis=-1)) + top[..., 0]


def log1mexp(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(1 - exp(x)) for x <= 0, without cancellation: 1 - exp(x) = 2 t / (1 + t) with t = tanh(-x / 2)."""
    half = jnp.tanh(-0.5 * x)
    return jnp.log(2.0 * half / (1.0 + half))


class RowNoise(NamedTuple):
    """The random numbers of `categorical_rows`, in place of a key: drawn beforehand, for several groups of rows."""

    values: Array


def keys_of_rows(key: Key, counts: Sequence[int], num_values: int, dtype: Any) -> list[Any]:
    """Keys for `categorical_rows`, one for each group of rows, whose random numbers are drawn here and together.

    Logarithms of random numbers that are used twice or more are computed once, in the order of memory. XLA would
    compute those of a single group where they are used, which is slow where that is not in the order of memory.

    Args:
        key: The key.
        counts: How many rows each group has (static).
        num_values: The columns of all log-weights.
        dtype: The type of all log-weights.

    >>> parts = keys_of_rows(jax.random.key(0), [3, 2], 2, jnp.float32)
    >>> [categorical_rows(part, jnp.zeros((n, 2))).shape for part, n in zip(parts, [3, 2])]
    [(3,), (2,)]
    """
    noise = _noise(key, (sum(counts), num_values), dtype)
    ends, axis = np.cumsum(counts), 1 if num_values > MANY else 0
    slices = [jax.lax.slice_in_dim(noise, end - n, end, axis=axis) for n, end in zip(counts, ends, strict=True)]
    return [RowNoise(one) for one in slices]


def _noise(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """What `_chosen` needs for log-weights of a shape."""
    *rows, num = shape
    if num == 2:  # the difference of two Gumbels is logistic: one random number instead of two
        return jax.random.logistic(key, rows, dtype)
    if num == 1:
        return jnp.zeros(rows, dtype)
    if num < FEW:
        return jax.random.gumbel(key, shape, dtype)
    return jax.random.uniform(key, rows if num <= MANY else (2, *rows), dtype)


def _draw(key: Any, logits: Float[Array, "*rows n"]) -> Int[Array, "*rows"]:
    noise = key.values if isinstance(key, RowNoise) else _noise(key, logits.shape, logits.dtype)
    if logits.shape[-1] == 2:
        return (logits[..., 1] - logits[..., 0] + noise > 0).astype(jnp.int32)
    if logits.shape[-1] == 1:
        return jnp.zeros(logits.shape[:-1], jnp.int32)
    if logits.shape[-1] < FEW:
        return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    if logits.shape[-1] <= MANY:
        return _inverse_cdf(noise, weights)
    # a block by its sum, then a place inside it: exact as well, and the running sums are short
    num = logits.shape[-1]
    size = int(np.ceil(np.sqrt(num)))
    padded = jnp.pad(weights, [(0, 0)] * (logits.ndim - 1) + [(0, -num % size)])
    blocks = padded.reshape(*logits.shape[:-1], -1, size)
    block = _inverse_cdf(noise[0], jnp.sum(blocks, axis=-1))
    inside = jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :]
    return block * size + _inverse_cdf(noise[1], inside)


def _inverse_cdf(level: Float[Array, "*rows"], weights: Float[Array, "*rows n"]) -> Int[Array, "*rows"]:
    """The first place of each row where the running sum of its weights exceeds the level (below 1) times their sum."""
    upper = jnp.asarray(np.tri(weights.shape[-1]).T, weights.dtype)
    sums = jnp.matmul(weights, upper, precision="highest")
    most = sums[..., -1] * (1 - jnp.finfo(weights.dtype).eps)  # rounding must not pass the last place with weight
    level = jnp.minimum(level * sums[..., -1], most)
    return jnp.sum(sums <= level[..., None], axis=-1, dtype=jnp.int32)


def categorical(key: Key, logits: Float[Array, " n"], valid: Any = None) -> Int[Array, ""]:
    """An index with probability proportional to exp(logits); see `sanitise` for infinities.

    >>> int(categorical(jax.random.key(0), jnp.array([0.0, jnp.inf, 3.0])))
    1
    """
    return _draw(key, sanitise(logits, valid))


def categorical_rows(
    key: Key, logits: Float[Array, "rows n"], valid: Any = None, sizes: Any = None
) -> Int[Array, " rows"]:
    """One independent index per row; `sizes` (static) says that row i has zero weight beyond `sizes[i]`.

    The key may be one of `keys_of_rows`.
    """
    return _draw(key, sanitise(logits, valid))


def choice_rows(
    key: Key, log_stay: Float[Array, " rows"], log_moves: Float[Array, "move rows"], num_choices: Any
) -> Int[Array, " rows"]:
    """One independent choice per row: 0 (staying) or 1 + the number of a move, from their log-probabilities.

    Moves come first in the running sums, where a random word is finest: rare ones keep their probability.

    Args:
        key: The key.
        log_stay: The log-probabilities of staying.
        log_moves: Those of the moves.
        num_choices: How many choices each row has (static); the others have zero probability.
    """
    num_moves, num_rows = log_moves.shape
    sums = jnp.cumsum(jnp.exp(log_moves), axis=0)
    total = sums[-1] + jnp.exp(log_stay)
    fraction = jax.random.bits(key, (num_rows,), jnp.uint32).astype(total.dtype) * np.asarray(2.0**-32, total.dtype)
    level = jnp.minimum(fraction, 1 - jnp.finfo(total.dtype).eps) * total  # below the total: staying may be impossible
    passed = jnp.sum(sums <= level, axis=0, dtype=jnp.int32)
    return jnp.where(passed == num_moves, 0, passed + 1)


def bernoulli(key: Key, log_prob: Float[Array, ""]) -> Bool[Array, ""]:
    """True with probability exp(log_prob), log_prob <= 0."""
    return jnp.log(jax.random.uniform(key, (), log_prob.dtype)) < log_prob


def bernoulli_rows(key: Key, log_probs: Float[Array, " rows"]) -> Bool[Array, " rows"]:
    """Independent `bernoulli` draws."""
    return jnp.log(jax.random.uniform(key, log_probs.shape, log_probs.dtype)) < log_probs


def uniform_index(key: Key, num: int) -> Int[Array, ""]:
    """An index in 0..num-1, all equally likely; `num` is static."""
    return jax.random.randint(key, (), 0, num, jnp.int32)


def uniform_rows(key: Key, sizes: Any) -> Int[Array, " rows"]:
    """Independent indices, row i uniform in 0..sizes[i]-1; `sizes` is static."""
    return jax.random.randint(key, (len(sizes),), 0, jnp.asarray(sizes, jnp.int32), jnp.int32)


def ordered_subset(key: Key, log_weights: Float[Array, " n"], num: int) -> Int[Array, " num"]:
    """`num` distinct indices, drawn one after the other by weight without replacement (Plackett-Luce).

    With Gumbel noise G_i the `num` largest of log w_i + G_i, in order, have exactly that law: no loop.
    """
    log_weights = sanitise(log_weights)
    noise = jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    return jax.lax.top_k(log_weights + noise, num)[1].astype(jnp.int32)


def path_ranks(
    key: Key, log_weights: Float[Array, " n"], limit: int, length: Int[Array, ""]
) -> tuple[Int[Array, " limit"], Int[Array, " n"]]:
    """The first `length` (at most `limit`) indices of an `ordered_subset`: they, in order, and the place of each index.

    Places from `length` on hold no meaning, and indices without a place have the number `limit`. The largest of the
    perturbed weights are found one after the other, since paths are short and sorting is slow.
    """
    numbers, places = jnp.arange(log_weights.shape[0], dtype=jnp.int32), jnp.arange(limit, dtype=jnp.int32)
    never = jnp.full(log_weights.shape, limit, jnp.int32)
    log_weights = sanitise(log_weights)
    noise = jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    perturbed = jnp.maximum(log_weights + noise, jnp.finfo(log_weights.dtype).min)  # those without weight come last

    def visit(carry: Any) -> Any:
        place, path, ranks, left = carry
        best = jnp.min(jnp.where(left == jnp.max(left), numbers, log_weights.shape[0] - 1))
        path, ranks = jnp.where(places == place, best, path), jnp.where(numbers == best, place, ranks)
        return place + 1, path, ranks, jnp.where(numbers == best, -jnp.inf, left)

    start = (jnp.zeros((), jnp.int32), jnp.zeros(limit, jnp.int32), never, perturbed)
    return jax.lax.while_loop(lambda carry: carry[0] < length, visit, start)[1:3]


def random_subset(key: Key, num_items: int, num: int) -> Int[Array, " num"]:
    """`num` distinct indices out of `num_items`, all ordered choices equally likely.

    The first `num` swaps of a Fisher-Yates shuffle, on a list that is never written down.
    """
    if num == num_items:
        return jax.random.permutation(key, num_items).astype(jnp.int32)
    return after_swaps(uniform_rows(key, num_items - np.arange(num)))


def after_swaps(steps: Int[Array, " num"]) -> Int[Array, " num"]:
    """The first places of the list 0, 1, 2, ... after place r was swapped with place r + steps[r], for each r in turn.

    >>> after_swaps(jnp.array([2, 0, 0])).tolist()
    [2, 1, 0]
    """
    swaps: list[tuple[Array, Array]] = []  # (place, what lies there now)

    def at(place: Array) -> Array:
        item = place
        for where, what in swaps:  # later swaps overwrite earlier ones
            item = jnp.where(place == where, what, item)
        return item

    chosen = []
    for r in range(steps.shape[0]):
        place = r + steps[r]
        chosen.append(at(place))
        swaps.append((place, at(jnp.asarray(r, jnp.int32))))
    return jnp.stack(chosen)


def moves_and_signs(key: Key, log_prob: Float[Array, ""], num: int) -> tuple[Bool[Array, " num"], Int[Array, " num"]]:
    """Independently for each of `num` places: True with probability exp(log_prob), and a fair bit.

    One random word serves both: its upper 24 bits decide, its lowest bit is the fair one.
    """
    words = jax.random.bits(key, (num,), jnp.uint32)
    fraction = ((words >> 8).astype(jnp.float32) + 0.5) * np.float32(2.0**-24)
    return fraction < jnp.exp(log_prob).astype(jnp.float32), (words & 1).astype(jnp.int32)


def normal(key: Key, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Standard normals."""
    return jax.random.normal(key, shape, jnp.result_type(float))


def loop(key: Key, num: int, body: Callable[[Key, Any, Any], Any], carry: Any) -> Any:
    """`carry = body(key_i, i, carry)` for i = 0..num-1, compiled as a loop."""
    if num == 1:
        return body(split(key, 1)[0], jnp.asarray(0, jnp.int32), carry)
    xs = (jax.random.split(key, num), jnp.arange(num, dtype=jnp.int32))
    return jax.lax.scan(lambda c, x: (body(x[0], x[1], c), None), carry, xs)[0]
