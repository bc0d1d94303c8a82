"""Single-site log-ratios: what all informed kernels look at, computed in one place.

A *move* m = (i, o) adds the offset o in 1..K_i - 1 to coordinate i, modulo K_i: the sum_i (K_i - 1) single-site
neighbours of theta, in a fixed order known when the space is known. Its log-ratio is

    Delta_m = log pi(theta after m) - log pi(theta),

exact (one batched evaluation of all neighbours, or the target's cheap conditionals) or by Taylor expansion from one
gradient (Grathwohl et al. 2021). An MH correction makes any of them valid, so the expansion needs no error control.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.spaces import Space
from terrazzo.targets import Target


class Moves(NamedTuple):
    """The single-site moves of a space, as static arrays.

    Attributes:
        sites: The coordinate of each move.
        offsets: What is added to it, modulo its size.
        reverse: The index of the move that undoes it.
        sizes: The size of its coordinate.
        is_ordered: Whether its coordinate is ordered.
    """

    sites: np.ndarray
    offsets: np.ndarray
    reverse: np.ndarray
    sizes: np.ndarray
    is_ordered: np.ndarray

    @property
    def num_moves(self) -> int:
        return len(self.sites)

    @property
    def pattern(self) -> np.ndarray | None:
        """The offsets of every coordinate, if they are the same for all (and all sizes are); else None."""
        num_dims = int(self.sites[-1]) + 1 if self.num_moves else 0
        if not num_dims or self.num_moves % num_dims or (self.sizes != self.sizes[0]).any():
            return None
        offsets = self.offsets.reshape(num_dims, -1)
        is_regular = (self.sites.reshape(num_dims, -1) == np.arange(num_dims)[:, None]).all()
        return offsets[0] if is_regular and (offsets == offsets[0]).all() else None

    def spread(self, per_site: Shaped[Array, " dim"]) -> Shaped[Array, " move"]:
        """A number per coordinate, repeated for each of its moves: a gather, or a broadcast where that does."""
        if self.pattern is None:
            return per_site[self.sites]
        return jnp.broadcast_to(per_site[:, None], (per_site.shape[0], len(self.pattern))).reshape(-1)

    def values(self, theta: Int[Array, " dim"]) -> Int[Array, " move"]:
        """The value that each move gives its coordinate."""
        moved = self.spread(theta) + self.offsets
        return jnp.where(moved >= self.sizes, moved - self.sizes, moved)

    def apply(self, theta: Int[Array, " dim"], move: Int[Array, ""]) -> Int[Array, " dim"]:
        """The configuration after one move."""
        site = jnp.asarray(self.sites)[move]
        return theta.at[site].set((theta[site] + jnp.asarray(self.offsets)[move]) % jnp.asarray(self.sizes)[move])

    def distances(self, theta: Int[Array, " dim"]) -> Int[Array, " move"]:
        """New value minus old value."""
        return self.values(theta) - self.spread(theta)


def moves_of(space: Space, reach: int | None = None) -> Moves:
    """The single-site moves of a space: sum_i (K_i - 1) of them, fewer if ordered coordinates have a `reach`.

    >>> import terrazzo as tz
    >>> moves_of(tz.Space(tz.categorical(3, shape=2))).num_moves
    4
    """
    check_reach(reach)
    sites_by_dim, offsets_by_dim = [], []
    for i, (size, ordered) in enumerate(zip(space.sizes, space.is_ordered, strict=True)):
        offsets = np.arange(1, size)
        if ordered and reach is not None:
            offsets = offsets[(offsets <= reach) | (offsets >= size - reach)]
        sites_by_dim.append(np.full(len(offsets), i))
        offsets_by_dim.append(offsets)
    sites, offsets = np.concatenate(sites_by_dim), np.concatenate(offsets_by_dim)
    starts = np.concatenate([[0], np.cumsum([len(o) for o in offsets_by_dim])])
    # offsets of one site come in increasing order and o -> K - o maps them onto themselves, so it reverses them
    reverse = starts[sites] + starts[sites + 1] - 1 - np.arange(len(sites))
    as_int = lambda a: a.astype(np.int32)
    sizes = space.sizes[sites]
    return Moves(as_int(sites), as_int(offsets), as_int(reverse), as_int(sizes), space.is_ordered[sites])


def within_reach(moves: Moves, theta: Int[Array, " dim"], reach: int | None) -> Any:
    """Which moves change an ordered coordinate by at most `reach` (None: all), not through the ends."""
    if reach is None:
        return jnp.ones(moves.num_moves, bool)
    return ~jnp.asarray(moves.is_ordered) | (jnp.abs(moves.distances(theta)) <= reach)


def check_reach(reach: int | None) -> None:
    """Raises unless `reach` is None or a positive integer."""
    if reach is not None and (isinstance(reach, bool) or not isinstance(reach, int) or reach < 1):
        raise OptionError("reach", f"must be None or an integer of at least 1, got {reach!r}", "1: next neighbours")


# ---- exact


def num_neighbour_evaluations(target: Target, moves: Moves) -> int:
    """Evaluations that `neighbour_log_probs` needs."""
    return 0 if target.site_logits_fn is not None else moves.num_moves


def neighbour_log_probs(
    target: Target, moves: Moves, theta: Int[Array, " dim"], log_prob: Float[Array, ""]
) -> Float[Array, " move"]:
    """The log-probability of every single-site neighbour, in one batch (or from the target's cheap conditionals)."""
    values = moves.values(theta)
    if target.site_logits_fn is None:
        return jax.vmap(lambda i, k: target.log_prob(theta.at[i].set(k)))(jnp.asarray(moves.sites), values)
    logits = jax.vmap(lambda i: target.site_logits(theta, i))(jnp.arange(target.space.num_dims, dtype=jnp.int32))
    current = jnp.take_along_axis(logits, theta[:, None], axis=1)[:, 0]
    return log_prob + log_ratio(logits[moves.sites, values], current[moves.sites])


def log_ratio(new: Float[Array, "..."], old: Float[Array, "..."]) -> Float[Array, "..."]:
    """The difference new - old, where leaving an impossible configuration for another one counts as a ratio of 1.

    >>> float(log_ratio(jnp.array(-jnp.inf), jnp.array(-jnp.inf)))
    0.0
    """
    return jnp.where((new == -jnp.inf) & (old == -jnp.inf), 0.0, new - old)


def site_log_probs(
    target: Target, theta: Int[Array, " dim"], log_prob: Float[Array, ""], i: Int[Array, ""]
) -> Float[Array, " max_size"]:
    """The log-probabilities with theta_i set to 0..K_max-1 (-inf beyond K_i); up to a constant if from `site_logits`.

    The current value is known already, so that K_max - 1 candidates are evaluated, in one batch.
    """
    if target.site_logits_fn is not None:
        return target.site_logits(theta, i)
    max_size = target.space.max_size
    values = (theta[i] + jnp.arange(1, max_size, dtype=theta.dtype)) % jnp.asarray(target.space.sizes)[i]
    candidates = jax.vmap(lambda k: target.log_prob(theta.at[i].set(k)))(values)
    return jnp.full(max_size, -jnp.inf, candidates.dtype).at[values].set(candidates).at[theta[i]].set(log_prob)


# ---- by Taylor expansion


class Gradient(NamedTuple):
    """What the expansion needs at one configuration.

    Attributes:
        slope: d log pi / d theta_i at the configuration, as a real vector.
        one_hot: The same by one-hot rows, for unordered coordinates; None if they are not needed.
    """

    slope: Float[Array, " dim"]
    one_hot: Any


def needs_one_hot(target: Target) -> bool:
    """Whether unordered coordinates with more than two values are present."""
    return bool((~target.space.is_ordered & (target.space.sizes > 2)).any())


def check_gradient(target: Target) -> None:
    """Raises unless Taylor log-ratios exist: a gradient, and one-hot gradients for unordered coordinates."""
    has_slope = target.has_gradient or bool((~target.space.is_ordered).all() and target.one_hot_fn is not None)
    if not has_slope:
        raise UnsupportedError(
            "target",
            "cannot be differentiated at real theta",
            "use differentiable operations on theta, or a method with exact ratios such as locally_balanced",
        )
    if needs_one_hot(target) and target.one_hot_fn is None:
        raise UnsupportedError(
            "target",
            "has unordered variables but no one_hot_log_prob to differentiate",
            "give Target(..., one_hot_log_prob=...), or use a method with exact ratios such as locally_balanced",
        )


def num_gradients(target: Target) -> int:
    """Gradients that `gradient` computes."""
    return int(target.has_gradient) + int(target.one_hot_fn is not None and _uses_one_hot(target))


def _uses_one_hot(target: Target) -> bool:
    return target.one_hot_fn is not None and (needs_one_hot(target) or not target.has_gradient)


def gradient(target: Target, theta: Int[Array, " dim"]) -> Gradient:
    """The gradient at a configuration; where it is not finite (impossible configurations) it counts as zero."""
    real = theta.astype(jnp.result_type(float))
    slope = target.slope(theta) if target.has_gradient else jnp.zeros_like(real)
    one_hot = None
    if _uses_one_hot(target):
        rows = jax.nn.one_hot(theta, target.space.max_size, dtype=real.dtype)

        def relaxed(rows: Array) -> Array:
            with jax.default_matmul_precision("highest"):
                return target._tempered(jnp.asarray(target.one_hot_fn(rows)).astype(real.dtype))

        one_hot = _finite(jax.grad(relaxed)(rows))
    return Gradient(_finite(slope), one_hot)


def _finite(array: Array) -> Array:
    return jnp.where(jnp.isfinite(array), array, 0.0)


def taylor_log_ratios(target: Target, moves: Moves, theta: Int[Array, " dim"], grad: Gradient) -> Float[Array, " move"]:
    """First-order log-ratios of all moves: G_i (k - theta_i) if ordered, G_ik - G_i,theta_i if not."""
    sites, values = moves.sites, moves.values(theta)
    ratios = moves.spread(grad.slope) * moves.distances(theta).astype(grad.slope.dtype)
    if grad.one_hot is None:
        return ratios
    by_row = grad.one_hot[sites, values] - grad.one_hot[sites, theta[sites]]
    use_rows = ~moves.is_ordered if target.has_gradient else np.ones(moves.num_moves, bool)
    return jnp.where(jnp.asarray(use_rows), by_row, ratios)


class Columns(NamedTuple):
    """The columns of a table by offset: column 0 is staying, the others are the offsets that moves make.

    Attributes:
        offsets: What each column adds to its coordinate; one row if all coordinates have the same, else 0..K_max-1.
        moduli: The number of columns of each coordinate. Column c is undone by column (modulus - c) mod modulus.
    """

    offsets: np.ndarray
    moduli: np.ndarray

    def apply(self, space: Space, theta: Int[Array, " dim"], columns: Int[Array, " dim"]) -> Int[Array, " dim"]:
        """The configuration after the moves of these columns."""
        is_plain = len(self.offsets) == self.offsets[-1] + 1
        offsets = columns if is_plain else jnp.asarray(self.offsets)[columns]
        return (theta + offsets) % jnp.asarray(space.sizes)

    def undone(self, columns: Int[Array, " dim"]) -> Int[Array, " dim"]:
        """The columns that lead back."""
        moduli = jnp.asarray(self.moduli)
        return (moduli - columns) % moduli


def columns_of(moves: Moves, space: Space) -> Columns:
    """The columns of the tables that `as_rows` makes: as few as the moves allow.

    >>> import terrazzo as tz
    >>> space = tz.Space(tz.integers(0, 9, 4))
    >>> columns_of(moves_of(space, reach=1), space).offsets.tolist()
    [0, 1, 9]
    """
    if moves.pattern is None:
        return Columns(np.arange(space.max_size, dtype=np.int32), space.sizes.astype(np.int32))
    offsets = np.concatenate([[0], moves.pattern]).astype(np.int32)
    return Columns(offsets, np.full(space.num_dims, len(offsets), np.int32))


def as_rows(moves: Moves, space: Space, per_move: Float[Array, " move"], stay: Any, fill: Any = -jnp.inf) -> Array:
    """Numbers per move as a table with one row a coordinate (see `Columns`); offsets that do not exist hold `fill`."""
    if moves.pattern is not None:
        first = jnp.full((space.num_dims, 1), stay, per_move.dtype)
        return jnp.concatenate([first, per_move.reshape(space.num_dims, -1)], axis=1)
    table = jnp.full((space.num_dims, space.max_size), fill, per_move.dtype)
    return table.at[:, 0].set(stay).at[moves.sites, moves.offsets].set(per_move)
