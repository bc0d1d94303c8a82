"""Single-site log-ratios: what all informed kernels look at, computed in one place.

A *move* m = (i, o) adds the offset o in 1..K_i - 1 to coordinate i, modulo K_i: the sum_i (K_i - 1) single-site
neighbours of theta, in a fixed order known when the space is known. Its log-ratio is

    Delta_m = log pi(theta after m) - log pi(theta),

exact (all neighbours evaluated, or the target's cheap conditionals) or by Taylor expansion from one gradient (Grathwohl
et al. 2021). An MH correction makes any of them valid, so the expansion needs no error control.

Exact ratios cost evaluations, so their moves are a list without gaps (`Moves`). Expanded ones cost next to nothing, so
theirs are a grid (`Offsets`), whose lines run along the coordinates: what a computer is fast at.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.spaces import Space
from terrazzo.targets.target import Target, after


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

    def values(self, theta: Int[Array, " dim"]) -> Int[Array, " move"]:
        """The value that each move gives its coordinate."""
        moved = theta[self.sites] + self.offsets
        return jnp.where(moved >= self.sizes, moved - self.sizes, moved)

    def apply(self, theta: Int[Array, " dim"], move: Int[Array, ""]) -> Int[Array, " dim"]:
        """The configuration after one move."""
        site = jnp.asarray(self.sites)[move]
        return theta.at[site].set((theta[site] + jnp.asarray(self.offsets)[move]) % jnp.asarray(self.sizes)[move])

    def distances(self, theta: Int[Array, " dim"]) -> Int[Array, " move"]:
        """New value minus old value."""
        return self.values(theta) - theta[self.sites]


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

CACHED_BATCH = 4  # on a CPU, for each chain: the intermediate results of larger batches leave the cache


def log_probs_of(
    target: Target, candidate_fn: Callable[..., Int[Array, " dim"]], *xs: Any
) -> Float[Array, " candidate"]:
    """Log pi of `candidate_fn(*x)` for all candidates x: one batch, or on a CPU small ones, up to twice as fast."""
    one = lambda x: target.log_prob(candidate_fn(*x))
    is_small = jax.tree.leaves(xs)[0].shape[0] <= CACHED_BATCH
    if is_small or target.is_blackbox or jax.default_backend() != "cpu":
        return jax.vmap(one)(xs)
    return jax.lax.map(one, xs, batch_size=CACHED_BATCH)


def num_neighbour_evaluations(target: Target, moves: Moves) -> int:
    """Evaluations that `neighbour_log_probs` needs."""
    return 0 if target.has_cheap_neighbours else moves.num_moves


def neighbour_log_probs(
    target: Target, moves: Moves, theta: Int[Array, " dim"], log_prob: Float[Array, ""]
) -> Float[Array, " move"]:
    """The log-probability of every single-site neighbour, evaluated (or from the target's cheap conditionals)."""
    values = moves.values(theta)
    if not target.has_cheap_neighbours:
        return log_probs_of(target, lambda i, k: theta.at[i].set(k), jnp.asarray(moves.sites), values)
    logits = target.all_site_logits(after(log_prob, theta))
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

    The current value is known already, so that K_max - 1 candidates are evaluated.
    """
    if target.site_logits_fn is not None:
        return target.site_logits(theta, i)
    max_size = target.space.max_size
    values = (theta[i] + jnp.arange(1, max_size, dtype=theta.dtype)) % jnp.asarray(target.space.sizes)[i]
    candidates = log_probs_of(target, lambda k: theta.at[i].set(k), values)
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
    of_base = target.of_base(lambda q0: _differences(q0.site_logits(theta), theta, jnp.asarray(target.space.sizes)))
    slope = slope if of_base is None else slope + of_base
    one_hot = None
    if _uses_one_hot(target):
        rows = jax.nn.one_hot(theta, target.space.max_size, dtype=real.dtype)

        def relaxed(rows: Array) -> Array:
            with jax.default_matmul_precision("highest"):
                of_base = target.of_base(lambda q0: jnp.sum(rows * q0.site_logits(theta)))
                return target.tempered_values(jnp.asarray(target.one_hot_fn(rows)).astype(real.dtype), of_base)

        one_hot = _finite(jax.grad(relaxed)(rows))
    return Gradient(_finite(slope), one_hot)


def _differences(logits: Float[Array, "dim value"], theta: Int[Array, " dim"], sizes: Any) -> Float[Array, " dim"]:
    """What stands for the slope of a table of values: differences between the neighbours of each coordinate's value."""
    above, below = jnp.minimum(theta + 1, sizes - 1), jnp.maximum(theta - 1, 0)
    rise = jnp.take_along_axis(logits, jnp.stack([above, below], axis=1), axis=1) @ jnp.asarray([1.0, -1.0])
    return rise / jnp.maximum(above - below, 1).astype(rise.dtype)


def _finite(array: Array) -> Array:
    return jnp.where(jnp.isfinite(array), array, 0.0)


class Offsets(NamedTuple):
    """The single-site moves as a static grid: each line is an offset, for all coordinates.

    A *choice* of a coordinate is 0 for staying, or 1 + the number of a line.

    Attributes:
        lines: The offsets, all 1..K_max-1 or as few as all coordinates have in common; shape (line, 1).
        sizes: The sizes of the coordinates.
        is_ordered: Whether they are ordered.
        num_choices: The number of choices of each. Choice c is undone by choice (num_choices - c) mod num_choices.
    """

    lines: np.ndarray
    sizes: np.ndarray
    is_ordered: np.ndarray
    num_choices: np.ndarray

    @property
    def numbers(self) -> np.ndarray:
        """The choices that the lines are; shape (line, 1)."""
        return np.arange(1, len(self.lines) + 1, dtype=np.int32)[:, None]

    def distances(self, theta: Int[Array, " dim"]) -> Int[Array, "line dim"]:
        """New value minus old value."""
        return jnp.where(theta + self.lines >= self.sizes, self.lines - self.sizes, self.lines)

    def is_allowed(self, theta: Int[Array, " dim"], reach: int | None = None) -> Bool[Array, "line dim"]:
        """Which moves exist and change an ordered coordinate by at most `reach` (None: all), not through the ends."""
        exists = jnp.asarray(self.numbers < self.num_choices)
        if reach is None:
            return exists
        return exists & (~self.is_ordered | (jnp.abs(self.distances(theta)) <= reach))

    def apply(self, theta: Int[Array, "*n"], choice: Int[Array, "*n"], sites: Any = slice(None)) -> Int[Array, "*n"]:
        """The values of all coordinates, or of some sites, after their choices."""
        moved = theta + jnp.sum(jnp.where(choice == self.numbers, self.lines, 0), axis=0, dtype=jnp.int32)
        sizes = jnp.asarray(self.sizes)[sites]
        return jnp.where(moved >= sizes, moved - sizes, moved)

    def undone(self, choice: Int[Array, "*n"], sites: Any = slice(None)) -> Int[Array, "*n"]:
        """The choices that lead back."""
        return jnp.where(choice == 0, 0, jnp.asarray(self.num_choices)[sites] - choice)


def offsets_of(space: Space, reach: int | None = None) -> Offsets:
    """The grid of single-site moves, with the fewest lines that a `reach` of ordered coordinates allows.

    >>> import terrazzo as tz
    >>> offsets_of(tz.Space(tz.integers(0, 9, 4)), reach=1).lines.ravel().tolist()
    [1, 9]
    """
    check_reach(reach)
    sizes, lines = space.sizes.astype(np.int32), np.arange(1, space.max_size, dtype=np.int32)
    if reach is not None and space.is_ordered.all() and (sizes == space.max_size).all():
        lines = lines[(lines <= reach) | (lines >= space.max_size - reach)]
        return Offsets(lines[:, None], sizes, space.is_ordered, np.full(space.num_dims, len(lines) + 1, np.int32))
    return Offsets(lines[:, None], sizes, space.is_ordered, sizes)


def taylor_log_ratios(
    target: Target, offsets: Offsets, theta: Int[Array, " dim"], grad: Gradient
) -> Float[Array, "line dim"]:
    """First-order log-ratios of all moves: G_i (k - theta_i) if ordered, G_ik - G_i,theta_i if not."""
    distances = offsets.distances(theta)
    ratios = grad.slope * distances.astype(grad.slope.dtype)
    if grad.one_hot is None:
        return ratios
    rows = jnp.arange(target.space.num_dims, dtype=jnp.int32)
    by_row = grad.one_hot[rows, theta + distances] - grad.one_hot[rows, theta]
    return jnp.where(jnp.asarray(offsets.is_ordered & target.has_gradient), ratios, by_row)
