"""Gibbs updates with running conditionals: the cost is that of the sites that change.

The updates of a step draw with keys of their own, so what each of them would draw is known as soon as the tables are:
all updates before the first one that changes its site leave everything as it is. So the first change is looked for and
made, the tables are brought up to date, and the search goes on behind it. The draws are those of one update after the
other.
In a nearly settled chain hardly any site changes, and a sweep costs little more than its tables: the idea of the n-fold
way (Bortz, Kalos & Lebowitz 1975), with the waiting times left implicit.
Where the conditional of a single site costs next to nothing (`is_sequential`), one update follows the other instead.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from terrazzo.samplers.parts import randomness
from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.target import Target


def redraw_sites(
    key: randomness.Key,
    target: Target,
    theta: Int[Array, " dim"],
    num_updates: int,
    pick: Callable[[randomness.Key, Int[Array, ""]], tuple[Array, randomness.Key]],
) -> Int[Array, " dim"]:
    """The configuration after `num_updates` sites have been redrawn from their conditionals, one after the other.

    Args:
        key: A JAX key.
        target: A target with running conditionals.
        theta: The configuration.
        num_updates: How many.
        pick: `(key, number) -> (site, key of its draw)`.
    """
    running = target.running
    assert running is not None
    if running.is_sequential:
        return _one_after_the_other(key, target, running, theta, num_updates, pick)
    places = jnp.arange(num_updates, dtype=jnp.int32)
    sites, value_keys = jax.vmap(pick)(jax.random.split(key, num_updates), places)
    is_value = jnp.arange(target.space.max_size, dtype=jnp.int32) < jnp.asarray(target.space.sizes)[sites][:, None]

    def next_change(tables: Any, theta: Array, place: Array) -> tuple[Array, Array, Array]:
        """The first update from `place` on that changes its site (or `num_updates`), the site and its new value."""
        logits = target.running_logits(tables, theta)[sites]
        values = jax.vmap(randomness.categorical)(value_keys, logits, is_value)
        is_change = (values != theta[sites]) & (places >= place)
        first = jnp.min(jnp.where(is_change, places, num_updates))
        at = jnp.minimum(first, num_updates - 1)
        return first, sites[at], values[at]

    def change(carry: Any) -> Any:
        (first, site, value), tables, theta = carry
        tables = running.moved(tables, theta, site, value)
        theta = theta.at[site].set(value)
        return next_change(tables, theta, first + 1), tables, theta

    tables = running.start(theta)
    start = (next_change(tables, theta, jnp.zeros((), jnp.int32)), tables, theta)
    return jax.lax.while_loop(lambda carry: carry[0][0] < num_updates, change, start)[2]


def _one_after_the_other(
    key: randomness.Key,
    target: Target,
    running: AbstractRunningConditionals,
    theta: Int[Array, " dim"],
    num_updates: int,
    pick: Callable[[randomness.Key, Int[Array, ""]], tuple[Array, randomness.Key]],
) -> Int[Array, " dim"]:
    """Each update by the conditional of its own site."""
    sizes = jnp.asarray(target.space.sizes)
    values = jnp.arange(target.space.max_size, dtype=jnp.int32)

    def update(key: randomness.Key, number: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        theta, tables = carry
        site, value_key = pick(key, number)
        is_value = values < sizes[site]
        of_base = target.of_base(lambda q0: q0.site_logits(theta)[site])
        draw = lambda logits: randomness.categorical(
            value_key, target.cheap_logits(logits, is_value, of_base), is_value
        )
        value, tables = running.redrawn(tables, theta, site, draw)
        return theta.at[site].set(value), tables

    with jax.default_matmul_precision("highest"):
        return randomness.loop(key, num_updates, update, (theta, running.start(theta)))[0]
