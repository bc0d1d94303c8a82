"""Categoricals as cells of a Gaussian coordinate: theta = inverse CDF at Phi(z), exact in both tails.

The category of largest probability sits in the middle of the real line, the others to its left and right, so that
every cell to the left is an interval of log Phi(z) and every cell to the right one of log Phi(-z):

    cell of k on the left:  L_k <= Phi(z) < L_k + q_k,      on the right:  R_k < Phi(-z) <= R_k + q_k.

Ordered categories keep their order. Where a category is so improbable that its interval would vanish between two
probable ones (relative size below 1e-4), and always for unordered categories, the categories are laid out by
decreasing probability away from the middle instead: then q_k >= L_k / K, and a probability of 1e-30 still has a cell.
Any fixed layout obeys the law of transports; the layout is a function of the probabilities alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array, Bool, Float, Int

from terrazzo.transports import normal

PAIRWISE_LIMIT = 64  # up to this many categories, ranks and sums are K x K comparisons, which fuse; beyond it, sorts
THINNEST_CELL = 1e-4


class Layout(NamedTuple):
    """Where each category's cell lies.

    Attributes:
        log_probs: log q_k.
        log_start: log L_k on the left, log R_k on the right; the mass beyond the cell, towards its tail.
        is_left: On which side of the mode the category lies.
        mode: The category in the middle.
    """

    log_probs: Float[Array, " max_size"]
    log_start: Float[Array, " max_size"]
    is_left: Bool[Array, " max_size"]
    mode: Int[Array, ""]


def masked_log_probs(logits: Float[Array, "*dims max_size"], sizes: Int[Array, "*dims"]) -> Array:
    """log softmax over the first `size` entries of each row; -inf beyond."""
    inside = jnp.arange(logits.shape[-1], dtype=jnp.int32) < sizes[..., None]
    return jax.nn.log_softmax(jnp.where(inside, logits, -jnp.inf), axis=-1)


def _by_order(log_probs: Array, mode: Array) -> tuple[Array, Array]:
    """Starts and sides when categories keep their order."""
    num = log_probs.size
    is_left = jnp.arange(num, dtype=jnp.int32) < mode
    if num <= PAIRWISE_LIMIT:
        index = jnp.arange(num, dtype=jnp.int32)
        is_beyond = jnp.where(is_left[:, None], index[None, :] < index[:, None], index[None, :] > index[:, None])
        return logsumexp(jnp.where(is_beyond, log_probs[None, :], -jnp.inf), axis=1), is_left
    below = jnp.concatenate([jnp.full(1, -jnp.inf, log_probs.dtype), jax.lax.cumlogsumexp(log_probs)[:-1]])
    above = jnp.concatenate([jax.lax.cumlogsumexp(log_probs, reverse=True)[1:], jnp.full(1, -jnp.inf, log_probs.dtype)])
    return jnp.where(is_left, below, above), is_left


def _by_rank(log_probs: Array) -> tuple[Array, Array]:
    """Starts and sides when categories alternate left and right by decreasing probability."""
    num = log_probs.size
    index = jnp.arange(num, dtype=jnp.int32)
    if num <= PAIRWISE_LIMIT:
        mine, other = log_probs[:, None], log_probs[None, :]
        before = (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))
        rank = before.sum(axis=1, dtype=jnp.int32)
        beyond = (rank[None, :] > rank[:, None]) & ((rank[None, :] - rank[:, None]) % 2 == 0)
        start = logsumexp(jnp.where(beyond, log_probs[None, :], -jnp.inf), axis=1)
        return start, rank % 2 == 1
    order = jnp.argsort(-log_probs, stable=True).astype(jnp.int32)
    padded = jnp.concatenate([log_probs[order], jnp.full(2 + num % 2, -jnp.inf, log_probs.dtype)]).reshape(-1, 2)
    tails = jax.lax.cumlogsumexp(padded, axis=0, reverse=True)
    start = tails[1:].reshape(-1)[:num]  # the mass of the same side, two ranks further out and beyond
    rank = jnp.zeros(num, jnp.int32).at[order].set(index)
    return jnp.zeros(num, log_probs.dtype).at[order].set(start), rank % 2 == 1


def layout(log_probs: Float[Array, " max_size"], is_ordered: bool | Bool[Array, ""] = False) -> Layout:
    """Lays the categories out on the real line; impossible ones (q_k = 0) get no cell."""
    log_probs = jax.lax.stop_gradient(log_probs)
    mode = jnp.argmax(log_probs).astype(jnp.int32)
    rank_start, rank_left = _by_rank(log_probs)
    order_start, order_left = _by_order(log_probs, mode)
    index = jnp.arange(log_probs.size, dtype=jnp.int32)
    is_thin = (log_probs - order_start < jnp.log(THINNEST_CELL)) & (index != mode) & (log_probs > -jnp.inf)
    by_order = jnp.asarray(is_ordered) & ~jnp.any(is_thin)
    return Layout(
        log_probs,
        jnp.where(by_order, order_start, rank_start),
        jnp.where(by_order, order_left, rank_left),
        mode,
    )


def _index(cells: Layout) -> Int[Array, " max_size"]:
    return jnp.arange(cells.log_probs.size, dtype=jnp.int32)


def select(cells: Layout, z: Float[Array, ""]) -> Int[Array, ""]:
    """The category whose cell holds z."""
    possible = (cells.log_probs > -jnp.inf) & (_index(cells) != cells.mode)
    end = jnp.logaddexp(cells.log_start, cells.log_probs)

    def side(mask: Array, t: Array) -> tuple[Array, Array]:
        is_beyond_mode = t < jnp.max(jnp.where(mask, end, -jnp.inf))
        begun = mask & (cells.log_start <= t)
        return is_beyond_mode & jnp.any(begun), jnp.argmax(jnp.where(begun, end, -jnp.inf)).astype(jnp.int32)

    in_left, k_left = side(cells.is_left & possible, log_ndtr(z))
    in_right, k_right = side(~cells.is_left & possible, log_ndtr(-z))
    return jnp.where(in_left, k_left, jnp.where(in_right, k_right, cells.mode))


def draw_inside(key: Array, cells: Layout, theta: Int[Array, ""]) -> Float[Array, ""]:
    """A standard normal draw restricted to the cell of theta."""
    dtype = cells.log_probs.dtype
    uniform = jax.random.uniform(key, (), dtype, minval=jnp.finfo(dtype).tiny)
    log_q, log_start = cells.log_probs[theta], cells.log_start[theta]
    # The middle cell runs from the left mass to 1 - the right mass; use whichever tail is the smaller.
    others = (_index(cells) != cells.mode) & (cells.log_probs > -jnp.inf)
    mass_left = logsumexp(jnp.where(others & cells.is_left, cells.log_probs, -jnp.inf))
    mass_right = logsumexp(jnp.where(others & ~cells.is_left, cells.log_probs, -jnp.inf))
    from_left = jnp.logaddexp(mass_left, log_q + jnp.log(uniform))
    from_right = jnp.logaddexp(mass_right, log_q + jnp.log1p(-uniform))
    is_mode = theta == cells.mode
    on_left = jnp.where(is_mode, from_left < from_right, cells.is_left[theta])
    t = jnp.logaddexp(log_start, log_q + jnp.log(uniform))
    t = jnp.where(is_mode, jnp.minimum(from_left, from_right), t)
    z = normal.log_ndtri(t)
    return jnp.where(on_left, z, -z)
