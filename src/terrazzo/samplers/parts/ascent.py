"""Coordinate ascent: each coordinate in turn takes its best value, many configurations side by side.

`maximize` ends with it, and the hunt for modes (`auto.hunt`) quenches random configurations by it. A target that has
running conditionals pays little more than one evaluation a sweep.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.runtime.compilation import jit
from terrazzo.targets.parts import Parts
from terrazzo.targets.target import Target

MAX_OFFSETS = 2**16  # beyond it ascent tries steps by powers of two instead of all values
BATCH = 2**14  # candidates of one site evaluated at a time


def offsets_of(max_size: int) -> np.ndarray:
    """What ascent adds to a coordinate, modulo its size."""
    if max_size <= MAX_OFFSETS:
        return np.arange(1, max_size, dtype=np.int32)
    powers = 2 ** np.arange(0, 24, dtype=np.int32)
    return np.concatenate([powers[powers < max_size], -powers[powers < max_size]])


@jit
def ascend(
    target: Target, theta: Int[Array, "row dim"], offsets: Int[Array, " offset"]
) -> tuple[Int[Array, "row dim"], Float[Array, " row"], Bool[Array, " row"]]:
    """One sweep of coordinate ascent: each coordinate in turn takes its best value, if that is better."""
    sizes = jnp.asarray(target.space.sizes)
    num_dims = target.space.num_dims

    def one(theta: Int[Array, " dim"]) -> tuple[Array, Array, Array]:
        def cheap(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            theta, log_prob = carry
            logits = target.site_logits(theta, i)
            value = jnp.argmax(logits).astype(theta.dtype)
            return theta.at[i].set(jnp.where(logits[value] > logits[theta[i]], value, theta[i])), log_prob

        if target.running is not None:
            new = _by_running(target, theta)
            log_prob = target.log_prob(new)
        elif target.site_logits_fn is not None:
            new, _ = jax.lax.fori_loop(0, num_dims, cheap, (theta, jnp.zeros((), jnp.result_type(float))))
            log_prob = target.log_prob(new)
        else:
            new, log_prob = _swept(target.log_prob, theta, sizes, offsets)
        return new, log_prob, jnp.any(new != theta)

    return jax.vmap(one)(theta)


@jit
def climb(
    parts: Parts, theta: Int[Array, "row dim"], which: Int[Array, " row"], offsets: Int[Array, " offset"]
) -> Int[Array, "row dim"]:
    """One sweep of coordinate ascent of each configuration by one of the parts of a target."""
    sizes = jnp.asarray(parts.target.space.sizes)
    one = lambda theta, part: _swept(lambda t: parts(t)[part], theta, sizes, offsets)[0]
    return jax.vmap(one)(theta, which)


def _swept(
    function: Callable[[Array], Array], theta: Int[Array, " dim"], sizes: Array, offsets: Int[Array, " offset"]
) -> tuple[Int[Array, " dim"], Float[Array, ""]]:
    """A sweep by evaluations of a function, and its value after it."""

    def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, best = carry
        values = (theta[i] + offsets) % sizes[i]
        of_value = lambda k: function(theta.at[i].set(k))
        found = jax.lax.map(of_value, values, batch_size=min(BATCH, values.shape[0]))
        place = jnp.argmax(found)
        is_better = found[place] > best
        theta = theta.at[i].set(jnp.where(is_better, values[place], theta[i]))
        return theta, jnp.where(is_better, found[place], best)

    return jax.lax.fori_loop(0, theta.shape[0], step, (theta, function(theta)))


@jit
def best_change(
    target: Target, theta: Int[Array, "row dim"], offsets: Int[Array, " offset"]
) -> tuple[Int[Array, "row dim"], Float[Array, " row"]]:
    """The best of all changes of one coordinate, and its log pi; the configuration itself where none is better.

    It sees a narrow mode from wherever all coordinates but one are right; a sweep only if that one is its first.
    """
    sizes = jnp.asarray(target.space.sizes)
    sites = jnp.arange(target.space.num_dims, dtype=jnp.int32)

    def one(theta: Int[Array, " dim"]) -> tuple[Array, Array]:
        if target.has_cheap_neighbours:
            logits = target.all_site_logits(theta)
            gains = logits - jnp.take_along_axis(logits, theta[:, None], axis=1)
            gains = jnp.where(jnp.isnan(gains), -jnp.inf, gains)
            i, value = jnp.unravel_index(jnp.argmax(gains), gains.shape)
            new = theta.at[i].set(jnp.where(gains[i, value] > 0, value.astype(theta.dtype), theta[i]))
            return new, target.log_prob(new)

        def best_value(i: Array) -> tuple[Array, Array]:
            values = (theta[i] + offsets) % sizes[i]
            of_value = lambda k: target.log_prob(theta.at[i].set(k))
            found = jax.lax.map(of_value, values, batch_size=min(BATCH, values.shape[0]))
            return values[jnp.argmax(found)], found.max()

        values, found = jax.lax.map(best_value, sites)
        here, i = target.log_prob(theta), jnp.argmax(found)
        new = theta.at[i].set(jnp.where(found[i] > here, values[i], theta[i]))
        return new, jnp.maximum(found[i], here)

    return jax.vmap(one)(theta)


@jit
def stir(
    target: Target, key: Array, theta: Int[Array, "row dim"], offsets: Int[Array, " offset"]
) -> tuple[Int[Array, "row dim"], Float[Array, " row"]]:
    """A Gibbs sweep of each configuration, and log pi after it: from an optimum into what is typical around it."""
    sizes, running, dtype = jnp.asarray(target.space.sizes), target.running, jnp.result_type(float)

    def drawn(key: Array, logits: Array, old: Array) -> Array:
        value = jax.random.categorical(key, logits).astype(old.dtype)
        return jnp.where(logits[value] > -jnp.inf, value, old)

    def one(key: Array, theta: Int[Array, " dim"]) -> tuple[Array, Array]:
        def step(i: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
            theta, known = carry
            site_key = jax.random.fold_in(key, i)
            if running is not None:
                value = drawn(site_key, running.site_logits(known, theta, i), theta[i])
                moved = running.moved(known, theta, i, value)
                known = jax.tree.map(lambda new, old: jnp.where(value != theta[i], new, old), moved, known)
                return theta.at[i].set(value), known
            if target.site_logits_fn is not None:
                return theta.at[i].set(drawn(site_key, target.site_logits(theta, i), theta[i])), known
            values = (theta[i] + offsets) % sizes[i]
            of_value = lambda k: target.log_prob(theta.at[i].set(k))
            found = jax.lax.map(of_value, values, batch_size=min(BATCH, values.shape[0]))
            found = jnp.where(jnp.abs(offsets) < sizes[i], found, -jnp.inf)  # each value once
            noise = jax.random.gumbel(site_key, (values.shape[0] + 1,), dtype)
            place = jnp.argmax(found + noise[1:])
            is_taken = found[place] + noise[1 + place] > known + noise[0]
            theta = theta.at[i].set(jnp.where(is_taken, values[place], theta[i]))
            return theta, jnp.where(is_taken, found[place], known)

        first = target.log_prob(theta) if running is None else running.start(theta)
        new, _ = jax.lax.fori_loop(0, target.space.num_dims, step, (theta, first))
        return new, target.log_prob(new)

    return jax.vmap(one)(jax.random.split(key, theta.shape[0]), theta)


def _by_running(target: Target, theta: Int[Array, " dim"]) -> Int[Array, " dim"]:
    """A sweep by running conditionals."""
    running = target.running
    assert running is not None

    def step(i: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        theta, tables = carry
        logits = running.site_logits(tables, theta, i)
        value = jnp.argmax(logits).astype(theta.dtype)
        is_better = logits[value] > logits[theta[i]]
        moved = running.moved(tables, theta, i, value)
        tables = jax.tree.map(lambda new, old: jnp.where(is_better, new, old), moved, tables)
        return theta.at[i].set(jnp.where(is_better, value, theta[i])), tables

    return jax.lax.fori_loop(0, target.space.num_dims, step, (theta, running.start(theta)))[0]


class Density(eqx.Module):
    """log pi at theta and unconstrained reals, with their Jacobian, as a function to climb."""

    target: Target

    def __call__(self, theta: Array, y: Array, part: Array) -> Float[Array, ""]:
        return self.target.log_density(theta, y)


class PartOfReals(eqx.Module):
    """One of the parts of a target without discrete variables, as a function to climb."""

    parts: Parts

    def __call__(self, theta: Array, y: Array, part: Array) -> Float[Array, ""]:
        return self.parts(y)[part]


@jit
def ascend_reals(
    function: Density | PartOfReals,
    theta: Int[Array, "row dim"],
    y: Float[Array, "row real"],
    which: Int[Array, " row"],
    step: Float[Array, "row real"],
    count: Int[Array, ""],
) -> tuple[Float[Array, "row real"], Float[Array, " row"], Float[Array, "row real"]]:
    """Ascends along the signs of slopes, at fixed theta: the best points, their values, and the last step sizes.

    Each coordinate has a step size, longer by a fifth where the sign stays and half as long where it turns (Rprop;
    Riedmiller & Braun 1993): scales that differ by orders of magnitude cost a few more steps.
    """
    evaluate = jax.vmap(jax.value_and_grad(function, argnums=1))

    def body(i: Array, carry: tuple) -> tuple:
        y, step, signs, best, highest = carry
        values, slopes = evaluate(theta, y, which)
        is_usable = (values > -jnp.inf) & (values < jnp.inf) & jnp.all(jnp.isfinite(slopes), axis=1)
        is_better = is_usable & (values > highest)
        best, highest = jnp.where(is_better[:, None], y, best), jnp.where(is_better, values, highest)
        new = jnp.where(is_usable[:, None], jnp.sign(slopes), 0.0)
        factor = jnp.where(new * signs > 0, 1.2, jnp.where(new * signs < 0, 0.5, 1.0))
        step = step * jnp.where(is_usable[:, None], factor, 0.25)
        return jnp.where(is_usable[:, None], y, best) + new * step, step, new, best, highest

    first = (y, step, jnp.zeros_like(y), y, jnp.full(y.shape[0], -jnp.inf, y.dtype))
    _, step, _, best, highest = jax.lax.fori_loop(0, count, body, first)
    return best, highest, step


@jit
def curvature(function: Density, theta: Int[Array, " dim"], y: Float[Array, " real"]) -> Float[Array, "real real"]:
    """The second derivatives of a density along the reals."""
    return jax.hessian(function, argnums=1)(theta, y, jnp.zeros((), jnp.int32))
