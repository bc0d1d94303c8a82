"""The hunt for modes on spaces with real variables: tops of the density that chains do not come back from.

Tempered ladders do not find a narrow mode beside a broad one, as on discrete spaces (`auto.hunt`). So draws of the
reference, points around the chains' draws and draws of ladders are taken uphill along the reals, and so is where the
function's own parts lead (`targets.parts`). Chains of the run's own kernel start at the tops. Those that come back into
the law of the others have said that nothing is there. Where theta is summed out (or there is none), the mass around the
top that another one stays at is found by importance sampling from its quadratic approximation, so that the share of
draws that must lie there is known. Else the mode counts, with an unknown share.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats
from scipy.special import expit

from terrazzo.auto import Policy
from terrazzo.diagnostics import LogZ, importance_summary
from terrazzo.runtime.compilation import jit
from terrazzo.samplers.parts.ascent import Density, PartOfReals, ascend_reals, curvature
from terrazzo.samplers.parts.references import UserReference
from terrazzo.spaces import Configuration, Space
from terrazzo.targets.parts import num_equations, parts_of_reals
from terrazzo.targets.target import Target
from terrazzo.verdict.checks import NOT_TRUSTED, UNCHECKED, Check
from terrazzo.verdict.coverage import Disagreement, compare, moments_of

LOST = "share of the draws that a hunted mode lacks"
STAYING = "other tops that chains stay at"


class Modes(NamedTuple):
    """Modes that chains of the run's own kernel did not come back from, but for negligible ones.

    Attributes:
        places: Their tops, (mode, real) in unconstrained coordinates.
        roots: y lies at a mode where |root (y - place)| is small enough (`inside`); (mode, real, real).
        shares: The share of all draws that must lie there; NaN where that is unknown.
        errors: Its standard error.
    """

    places: np.ndarray
    roots: np.ndarray
    shares: np.ndarray
    errors: np.ndarray


def inside(place: np.ndarray, root: np.ndarray, y: np.ndarray, policy: Policy) -> np.ndarray:
    """Which of the reals (..., real) lie in the ellipsoid of a mode."""
    square = stats.chi2.ppf(policy.mixed.content, len(place))
    with np.errstate(invalid="ignore"):  # a draw at a bound is infinitely far
        return (((y - place) @ root.T) ** 2).sum(axis=-1) <= square


def generator(key: Array) -> np.random.Generator:
    """Random numbers of the host."""
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))


@jit
def _from_reference(target: Target, key: Array, count: int, is_whole: bool) -> tuple[Array, Array]:
    """Draws of the reference; without theta where it is not needed, so that nothing of it is compiled."""
    theta, y = jax.vmap(UserReference(target).draw)(jax.random.split(key, count))
    return (theta if is_whole else theta[:, :0]), y


class Hunt:
    """A search for tops of the density that differ from each other, in steps that may be taken in a thread.

    Attributes:
        found: The tops, best first, once all steps are taken; else None.
        log_density: log pi there.
        is_waited_for: Whether somebody waits: then no more is searched than must be.
    """

    def __init__(
        self, key: Array, target: Target, weighed: Target, draws: Configuration, num: int, policy: Policy,
        seconds: float | None = None,
    ):  # fmt: skip
        """What to search, from what, and how much.

        Args:
            key: A JAX key.
            target: The target of the run.
            weighed: The same, or its density of the reals alone.
            draws: Draws of chains, flat.
            num: Tops at most.
            policy: How much is tried.
            seconds: Those of the whole run, or None without a limit.
        """
        self.target, self.weighed, self.draws, self.num, self.policy = target, weighed, draws, num, policy
        self._seconds = min(policy.hunt_seconds, policy.hunt_share * (seconds or np.inf))
        self.found: Configuration | None = None
        self.log_density = np.zeros(0)
        self.is_waited_for = False
        self._key, self._spread = key, np.maximum(draws.reals.std(axis=0), 1e-6)

    def steps(self) -> Iterator[None]:
        """Searches: the best of many points go uphill first, then others until the seconds of a hunt are spent."""
        rng, policy, began = generator(self._key), self.policy, time.perf_counter()
        starts, rows = self._starts(rng), policy.mixed.climbed
        yield
        values = _climbed(Density(self.weighed), starts, policy, 1)[1]
        yield
        order = np.argsort(-values, kind="stable")
        order = order[np.isfinite(values[order])]
        order = np.concatenate([order[: rows // 2], rng.permutation(order[rows // 2 :])])
        drawn = _rows(self.draws, rng.integers(0, len(self.draws.reals), rows // 4))
        waiting = [_joined(_rows(starts, order[: rows - rows // 4]), drawn)]
        if not self.weighed.space.num_dims and len(order) > 1:
            for guided in self._guided(_rows(starts, order), values[order], rng):
                waiting += [] if guided is None else [guided]
                yield
        left = order[rows - rows // 4 :]
        waiting += [_rows(starts, left[i : i + rows]) for i in range(0, len(left), rows)]
        found, log_density = _rows(starts, order[:0]), np.zeros(0)
        for i, one in enumerate(waiting):
            is_over = self.is_waited_for or time.perf_counter() - began > self._seconds
            if is_over and i >= policy.mixed.least_batches:
                break
            y, values, step = _climbed(Density(self.weighed), one, policy, policy.mixed.climbing_steps, self._spread)
            is_top = (step <= policy.mixed.first_step * self._spread).all(axis=1)  # or flat; others are on their way
            found = _joined(found, Configuration(one.theta, y))
            log_density = np.concatenate([log_density, np.where(is_top, values, -np.inf)])
            yield
        self.found = self._apart(found, log_density)

    def _starts(self, rng: np.random.Generator) -> Configuration:
        """Points of all scales around the draws, and draws of the reference."""
        num, space, width = self.policy.mixed.scanned, self.target.space, self.weighed.space.num_dims
        wide = self.draws.reals.mean(axis=0) + self._spread * rng.standard_cauchy((num, space.num_reals))
        theta = rng.integers(0, np.maximum(space.sizes[:width], 1), (num, width)).astype(np.int32)
        found = Configuration(theta, wide)
        if self.target.reference is not None:
            theirs = _from_reference(self.target, self._key, num, width > 0)
            found = _joined(found, Configuration(*(np.asarray(x) for x in theirs)))
        return found

    def _guided(
        self, start: Configuration, values: np.ndarray, rng: np.random.Generator
    ) -> Iterator[Configuration | None]:
        """Where the parts of the function lead from some points, last; None where it has none."""
        mixed, policy = rng.permutation(len(start.reals)), self.policy
        if num_equations(self.weighed) > policy.mixed.most_equations:
            return
        parts = parts_of_reals(self.weighed, start.reals[mixed], values[mixed], policy.most_parts)
        yield None
        if parts is not None and parts.chosen is not None:
            begin = _rows(start, np.resize(mixed, policy.mixed.climbed))
            which = np.arange(policy.mixed.climbed) % len(parts.chosen)
            steps = policy.mixed.climbing_steps
            yield begin._replace(reals=_climbed(PartOfReals(parts), begin, policy, steps, self._spread, which)[0])

    def _apart(self, found: Configuration, values: np.ndarray) -> Configuration:
        """The best of those whose reals differ by less than the draws spread: theta is moved by the chains."""
        left = np.where(np.isfinite(values) & np.isfinite(found.reals).all(axis=1), values, -np.inf)
        kept: list[int] = []
        while len(kept) < self.num and left.max(initial=-np.inf) > -np.inf:
            best = int(np.argmax(left))
            kept.append(best)
            is_near = (np.abs(found.reals - found.reals[best]) < self._spread).all(axis=1)
            left = np.where(is_near, -np.inf, left)
        self.log_density = values[kept]
        return _rows(found, np.array(kept, int))

    def can_matter(self, log_z: float) -> np.ndarray:
        """Which tops are not negligible, were the density as high in a large box, and for all theta."""
        sizes = self.weighed.space.sizes
        volume = np.log(self.policy.mixed.box * self._spread).sum() + np.log(np.maximum(sizes, 1)).sum()
        return ~(self.log_density + volume <= log_z + np.log(self.policy.negligible))  # of an unknown log Z all are


def compile_ahead(target: Target, weighed: Target, policy: Policy) -> Iterator[Any]:
    """Compiles what every hunt runs, one by one."""
    if target.reference is not None:
        yield _from_reference(target, jax.random.key(0), policy.mixed.scanned, weighed.space.num_dims > 0)
    blank = Configuration(np.zeros((1, weighed.space.num_dims), np.int32), np.zeros((1, weighed.space.num_reals)))
    yield _climbed(Density(weighed), blank, policy, 0)


def _rows(found: Configuration, where: np.ndarray) -> Configuration:
    return Configuration(np.asarray(found.theta)[where], np.asarray(found.reals)[where])


def _joined(*parts: Configuration) -> Configuration:
    return Configuration(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("theta", "reals")))


def _climbed(
    function: Any, start: Configuration, policy: Policy, count: int, spread: Any = 1.0, which: Any = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `ascend_reals`, so many steps from some points, in batches of one compiled size."""
    rows, total, dtype = policy.mixed.climbed, len(start.reals), jnp.result_type(float)
    which = np.zeros(total, np.int32) if which is None else which
    step = jnp.asarray(np.broadcast_to(policy.mixed.first_step * spread, (rows, start.reals.shape[1])), dtype)
    out = []
    for first in range(0, total, rows):
        at = np.arange(first, first + rows) % total
        one = ascend_reals(
            function, jnp.asarray(start.theta[at], jnp.int32), jnp.asarray(start.reals[at], dtype),
            jnp.asarray(which[at], jnp.int32), step, jnp.asarray(count, jnp.int32),
        )  # fmt: skip
        out.append([np.asarray(x, float) for x in one])
    y, values, steps = (np.concatenate(x)[:total] for x in zip(*out, strict=True))
    return y, values, steps


def who_stays(own: np.ndarray, others: np.ndarray, policy: Policy) -> np.ndarray:
    """Which chains (chain, draw, feature) did not come into the law of the draws, (chain, draw, feature)."""
    reference, alpha = moments_of(own), policy.alpha / len(others)

    def of_one(chain: np.ndarray) -> Disagreement:
        return compare(reference, moments_of(chain[None]), alpha=alpha)

    found = [of_one(chain) for chain in others[:, others.shape[1] // 2 :]]
    return np.array([one.z > one.limit for one in found], bool)


def weighed_modes(key: Array, weighed: Target, places: np.ndarray, log_z: LogZ, policy: Policy) -> Modes:
    """The modes at some tops of the density of reals, but for negligible ones.

    Args:
        key: A JAX key.
        weighed: A target without discrete variables.
        places: The tops, (mode, real).
        log_z: log Z of what is known of.
        policy: What is negligible.
    """
    found: list[tuple] = []
    d, density = weighed.space.num_reals, Density(weighed)
    rng = generator(key)
    for place in places:
        root = _root(np.asarray(curvature(density, jnp.zeros(0, jnp.int32), jnp.asarray(place))))
        share, error = np.nan, np.nan
        if root is not None:
            x = rng.standard_t(policy.mixed.freedom, (policy.mode_draws, d))
            log_q = stats.t.logpdf(x, policy.mixed.freedom).sum(axis=1) + np.linalg.slogdet(root)[1]
            y = place + np.linalg.solve(root, x.T).T
            values = _climbed(density, Configuration(np.zeros((len(y), 0), np.int32), y), policy, 1)[1]
            part = importance_summary(np.where(inside(place, root, y, policy), values - log_q, -np.inf))
            error = float(np.hypot(part.standard_error, np.nan_to_num(log_z.standard_error)))
            share = float(expit(part.log_z - log_z.log_z))
            most = expit(part.log_z + 3.0 * error - log_z.log_z)
            if most < policy.negligible:
                continue
        found.append((place, np.eye(d) if root is None else root, share, share * (1.0 - share) * error))
    if not found:
        return no_modes(d)
    return Modes(*(np.stack([np.asarray(one[i], float) for one in found]) for i in range(4)))


def _root(second: np.ndarray) -> np.ndarray | None:
    """R with R' R = -second, or None where that is not positive definite."""
    try:
        return np.linalg.cholesky(-second).T
    except np.linalg.LinAlgError:
        return None


def no_modes(num_reals: int) -> Modes:
    """Nothing but what is known."""
    return Modes(np.zeros((0, num_reals)), np.zeros((0, num_reals, num_reals)), np.zeros(0), np.zeros(0))


def unweighed_modes(places: np.ndarray) -> Modes:
    """Modes whose share is unknown."""
    num, d = places.shape
    return Modes(places, np.tile(np.eye(d), (num, 1, 1)), np.full(num, np.nan), np.full(num, np.nan))


def lacking(space: Space, modes: Modes, reals: np.ndarray, policy: Policy) -> float:
    """The largest share that draws, (chain, draw, value) in the user's scale, should have at a mode and do not.

    A mode lacks draws where these are fewer than half of its share, by more than their errors; 0 if none does.
    """
    worst = 0.0
    if np.isnan(modes.shares).all():
        return worst
    flat = jnp.asarray(reals.reshape(-1, reals.shape[-1]), jnp.result_type(float))
    y = np.asarray(jax.vmap(space.unconstrain)(flat)).reshape(*reals.shape[:2], -1)
    for place, root, share, error in zip(*modes, strict=True):
        if np.isnan(share):
            continue
        each = inside(place, root, y, policy).mean(axis=1)
        seen, own = float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else 0.0
        if seen < share / 2 and share - seen > policy.mixed.most_errors * np.hypot(own, error):
            worst = max(worst, share - seen)
    return worst


def mode_checks(space: Space, num_tops: float, modes: Modes, reals: np.ndarray, policy: Policy) -> tuple[Check, ...]:
    """Whether draws, in the user's scale (chain, draw, value), have what belongs to the modes that were found.

    Args:
        space: The space.
        num_tops: Tops at which chains were started; NaN if nobody looked.
        modes: Where they stayed.
        reals: The draws.
        policy: When a difference counts.
    """
    if np.isnan(num_tops):
        advice = "nobody looked for modes that ladders miss: leave the sampler out, or give log_prob a gradient"
        return (Check(LOST, float("nan"), policy.negligible, False, advice, UNCHECKED),)
    share, num_unknown = lacking(space, modes, reals, policy), int(np.isnan(modes.shares).sum())
    lost = "a mode was found that the draws leave out: set init= there, or raise draws and warmup"
    stays = "chains that start at other tops of the density do not come back, and what these weigh is unknown"
    return (
        Check.at_most(LOST, share, policy.negligible, lost, grade=NOT_TRUSTED),
        Check(STAYING, float(num_unknown), 0.0, num_unknown == 0, stays, UNCHECKED),
    )


def drawn_from(rng: np.random.Generator, modes: Modes, num: int) -> np.ndarray:
    """Reals of the modes in proportion to their shares, by their quadratic approximations, (draw, real)."""
    which = rng.choice(len(modes.shares), num, p=modes.shares / modes.shares.sum())
    noise = rng.standard_normal((num, modes.places.shape[1]))
    return np.stack([modes.places[k] + np.linalg.solve(modes.roots[k], x) for k, x in zip(which, noise, strict=True)])
