"""What a transport is, and the one law it obeys.

A transport turns a latent Gaussian z ~ p = N(0, I_d) into configurations: `push(z) -> (theta, log_volume)` is a
deterministic surjection with a number v(z), and `lift(key, theta) -> z` draws from exp(v) on the cell of theta.

**The law:** for every theta the integral of exp(v(z)) over {z : push(z) = theta} is exactly 1. Then
p~(z) = pi(push(z)) exp(v(z)) has pi as the exact law of theta, whatever the weights of the networks are
(docs/theory.md, section 1).

On a space with real variables z has a coordinate for each of them too, and a configuration is a `Configuration`, theta
and the unconstrained reals y. **The law there:** for every theta, exp(v) on {z : push(z) has theta} is carried by y to
Lebesgue measure ("Mixed spaces" on the same page).
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import TargetError, TransportError, arguments
from terrazzo.runtime.compilation import jit
from terrazzo.spaces import Configuration, Space
from terrazzo.targets.mixed import log_density_at
from terrazzo.targets.target import Target
from terrazzo.transports import normal

MAX_TRIES = 64  # to draw inside a cell
WEIGHT_BATCH = 1024  # configurations weighed at a time
Position: TypeAlias = Any  # codes, int32[d]; on a mixed space a `Configuration` of them and of unconstrained reals


class Pushed(NamedTuple):
    """A latent point pushed to the space.

    Attributes:
        theta: The configuration.
        log_volume: v(z); -inf where z has density 0.
    """

    theta: Position
    log_volume: Float[Array, ""]


class Relaxed(NamedTuple):
    """As `Pushed`, with theta real and straight-through derivatives (for training and surrogate forces)."""

    theta: Float[Array, " dim"]
    log_volume: Float[Array, ""]


class Scored(NamedTuple):
    """As `Pushed`, with the two terms of score-function training.

    Attributes:
        theta: The configuration; its reals may carry derivatives in the weights (at fixed z).
        log_volume: v(z), without derivatives but those along these reals.
        log_model: log of the model's density at the *fixed* point x = T(z) (for categoricals: log q(theta)), as a
            function of the weights, up to a constant.
        log_dequantizer: log q(u | theta) at that x (0 where the dequantizer is exact), as a function of the weights.
    """

    theta: Position
    log_volume: Float[Array, ""]
    log_model: Float[Array, ""]
    log_dequantizer: Float[Array, ""]


class AbstractTransport(eqx.Module):
    """A latent Gaussian, a surjection onto the space, and its exact stochastic inverse."""

    space: eqx.AbstractVar[Space]
    has_straight_through: eqx.AbstractClassVar[bool]  # whether push_relaxed carries a useful derivative in theta
    has_exact_dequantizer: eqx.AbstractClassVar[bool]  # whether the weight p~/p depends on theta alone

    @abstractmethod
    def push(self, z: Float[Array, " dim"]) -> Pushed:
        """theta and log_volume of one latent point."""

    @abstractmethod
    def lift(self, key: Array, theta: Position) -> Float[Array, " all"]:
        """A draw of z from exp(v) restricted to the cell of theta (and to the z that give these reals)."""

    @abstractmethod
    def push_relaxed(self, z: Float[Array, " dim"], *, is_offset_held: bool = False) -> Relaxed:
        """As `push`, same values, but theta is real with dtheta/dx = 1 and du/dx = 1, or 0 if u is held."""

    @abstractmethod
    def push_scored(self, z: Float[Array, " dim"]) -> Scored:
        """As `push`, with the log-densities whose derivatives in the weights are the score."""

    @abstractmethod
    def log_likelihood(self, key: Array, theta: Position) -> Float[Array, ""]:
        """A lower bound on the log of the model's probability of theta, differentiable in the weights.

        It is log p(z) - v(z) at a lifted z (the dequantization bound), and the exact log q(theta) where the dequantizer
        is exact.
        """

    def for_drawing(self) -> "AbstractTransport":
        """The same transport, laid out for a loop that evaluates it many times with fixed weights."""
        return self

    def describe(self) -> dict[str, Any]:
        """The options of its builder that make a transport of the same shapes, so that it can be stored."""
        return {}

    @property
    def num_dims(self) -> int:
        """Coordinates of z."""
        return self.space.num_dims + self.space.num_reals

    def sample(self, key: Array, num_draws: int) -> Position:
        """Independent draws of the transport itself, theta = push(z) with z ~ p: the paper's Remark 1.

        They follow the transport's own law q, not pi. With a target at hand, `sample_transport` (same key, same draws)
        adds the weights that make them exact; where the dequantizer is exact, log q is `log_prob(theta)`.

        Args:
            key: A JAX key.
            num_draws: How many.

        Returns:
            Flat configurations; `transport.space.decode` gives them in the user's values. With real variables a
            `Configuration` of codes and unconstrained reals.

        >>> import jax, terrazzo as tz
        >>> tz.transports.product_transport(tz.binary(3)).sample(jax.random.key(0), 5).shape
        (5, 3)
        """
        num_draws = _checked_draws(key, num_draws, self.num_dims)
        return _pushed(self, key, num_draws)


@jit
def _pushed(transport: AbstractTransport, key: Array, num_draws: int) -> Position:
    return jax.vmap(lambda k: transport.push(_latent(k, transport)).theta)(jax.random.split(key, num_draws))


def _checked_draws(key: Any, num_draws: Any, num_dims: int) -> int:
    arguments.random_key(key)
    num_draws = arguments.count("num_draws", num_draws, remedy="e.g. num_draws=1000")
    arguments.memory(f"{num_draws} draws of {num_dims} coordinates", 16.0 * num_draws * num_dims, "ask for fewer")
    return num_draws


def checked_pair(transport: Any, target: Any) -> None:
    """Raises unless these are a transport and a target on one space."""
    arguments.instance(
        "transport", transport, AbstractTransport, "e.g. tz.transports.product_transport(space)", TransportError
    )
    arguments.instance("target", target, Target, "e.g. tz.Target(log_prob, tz.binary(20))", TargetError)
    if transport.space != target.space:
        raise TransportError("transport", "was built for another space", "build it for the target's space")


def _latent(key: Array, transport: AbstractTransport) -> Float[Array, " dim"]:
    return jax.random.normal(key, (transport.num_dims,))


def log_weight(transport: AbstractTransport, target: Target, z: Float[Array, " dim"]) -> Float[Array, ""]:
    """log w(z) = log p~(z) - log p(z); E_p[w] = Z, the normalising constant of the target."""
    theta, log_volume = transport.push(z)
    return log_density_at(target, theta) + log_volume - normal.log_density(z)


class AbstractExactTransport(AbstractTransport):
    """A transport with an exact dequantizer and a law q of its own: v(z) = log p(z) - log q(theta)."""

    has_straight_through: ClassVar[bool] = False
    has_exact_dequantizer: ClassVar[bool] = True

    @abstractmethod
    def decode(self, z: Float[Array, " dim"]) -> tuple[Position, Array]:
        """theta and log q(theta)."""

    @abstractmethod
    def log_prob(self, theta: Position) -> Float[Array, ""]:
        """log q(theta)."""

    @abstractmethod
    def drawer(self, theta: Position) -> Callable[[Array], Float[Array, " all"]]:
        """`key -> z`, draws inside the cell of theta, up to rounding at its borders: what `lift` tries."""

    def push(self, z: Float[Array, " dim"]) -> Pushed:
        theta, log_q = self.decode(jax.lax.stop_gradient(z))
        return Pushed(theta, jnp.where(jnp.all(jnp.isfinite(z)), normal.log_density(z) - log_q, -jnp.inf))

    def lift(self, key: Array, theta: Position) -> Float[Array, " all"]:
        return lift_by_rejection(key, self.drawer(theta), self.push, theta)

    def push_relaxed(self, z: Float[Array, " dim"], *, is_offset_held: bool = False) -> Relaxed:
        theta, log_volume = self.push(z)
        return Relaxed(codes_of(theta).astype(z.dtype), log_volume)

    def log_likelihood(self, key: Array, theta: Position) -> Float[Array, ""]:
        return self.log_prob(theta)


class AbstractClampableTransport(AbstractExactTransport):
    """An exact transport on a discrete space that can hold coordinates fixed (`clamped`)."""

    @abstractmethod
    def decode(self, z: Float[Array, " dim"], clamped: Int[Array, " dim"] | None = None) -> tuple[Array, Array]:
        """theta and log q(theta). Coordinates with `clamped` >= 0 keep that value and are left out of log q."""

    @abstractmethod
    def log_prob(self, theta: Int[Array, " dim"], is_free: Bool[Array, " dim"] | None = None) -> Float[Array, ""]:
        """log q(theta); only the terms log q(theta_i | earlier) of free coordinates if given."""


class TransportDraws(NamedTuple):
    """Independent draws of a transport, with their importance weights.

    Attributes:
        theta: Flat configurations, (draw, dim); with real variables a `Configuration` of codes and unconstrained reals.
        log_prob: log pi of each; with real variables as a density of the unconstrained ones.
        log_weights: log w of each; E[w] = Z.
    """

    theta: Position
    log_prob: Float[Array, " draw"]
    log_weights: Float[Array, " draw"]


def sample_transport(key: Array, transport: AbstractTransport, target: Target, num_draws: int) -> TransportDraws:
    """Independent draws pushed from the latent Gaussian, with weights: the paper's Remark 1, made exact.

        z ~ p,  theta = push(z),  w = p~(z) / p(z);    E[w] = Z,    E[w f(theta)] / E[w] = E_pi[f]

    `diagnostics.importance_summary(draws.log_weights)` gives log Z and says how many independent draws they are worth.

    Args:
        key: A JAX key.
        transport: The transport, best a trained one.
        target: The target, on the transport's space.
        num_draws: How many.

    >>> import jax, jax.numpy as jnp, terrazzo as tz
    >>> target = tz.Target(lambda t: -0.5 * t.sum(), tz.binary(3))
    >>> transport = tz.transports.product_transport(target.space)
    >>> draws = tz.transports.sample_transport(jax.random.key(0), transport, target, 4096)
    >>> mean = jax.nn.softmax(draws.log_weights) @ draws.theta.astype(float)
    >>> bool(jnp.abs(mean - jax.nn.sigmoid(-0.5)).max() < 0.05)
    True
    """
    checked_pair(transport, target)
    return _weighted_draws(key, transport, target, _checked_draws(key, num_draws, transport.num_dims))


@jit
def _weighted_draws(key: Array, transport: AbstractTransport, target: Target, num_draws: int) -> TransportDraws:
    def one(key: Array) -> TransportDraws:
        z = _latent(key, transport)
        theta, log_volume = transport.push(z)
        log_prob = log_density_at(target, theta)
        return TransportDraws(theta, log_prob, log_prob + log_volume - normal.log_density(z))

    return jax.vmap(one)(jax.random.split(key, num_draws))


def posterior_log_weights(key: Array, transport: AbstractTransport, target: Target, theta: Any) -> Float[Array, "..."]:
    """The log-weights of given configurations under a transport, e.g. of draws of chains on pi.

    Where the dequantizer is exact, log w = log pi(theta) - log q(theta). Elsewhere it is the weight at a lifted z,
    log p~(z) - log p(z): if theta ~ pi then z ~ p~ / Z, which is what bridge sampling and checks of the transport need.
    A theta whose cell is too thin to be lifted in floating point is out of the transport's reach: its weight is +inf.

    Args:
        key: A JAX key (for the lifts).
        transport: The transport.
        target: The target.
        theta: Flat configurations with any leading axes, (..., dim): `result.theta`, say. With real variables a
            `Configuration` of codes and unconstrained reals.

    Returns:
        log w, with the leading axes of `theta`.

    >>> import jax, jax.numpy as jnp, terrazzo as tz
    >>> target = tz.Target(lambda t: -0.5 * t.sum(), tz.binary(3))
    >>> theta = jnp.zeros((4, 10, 3), jnp.int32)
    >>> posterior_log_weights(jax.random.key(0), tz.transports.product_transport(target.space), target, theta).shape
    (4, 10)
    """
    arguments.random_key(key)
    checked_pair(transport, target)
    codes = jnp.asarray(codes_of(theta), jnp.int32)
    flat = lambda x: x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    rows: Any = flat(codes)
    if isinstance(theta, Configuration):
        rows = Configuration(rows, flat(jnp.asarray(theta.reals, jnp.result_type(float))))
    return _log_weights_at(key, transport, target, rows).reshape(codes.shape[:-1])


@jit
def _log_weights_at(key: Array, transport: AbstractTransport, target: Target, theta: Any) -> Float[Array, " row"]:
    def one(row: tuple[Array, Any]) -> Float[Array, ""]:
        key, theta = row
        if transport.has_exact_dequantizer:
            return log_density_at(target, theta) - transport.log_likelihood(key, theta)
        z = transport.lift(key, theta)
        is_lifted = jnp.all(jnp.isfinite(z))
        weight = log_weight(transport, target, jnp.where(is_lifted, z, 0.0))
        return jnp.where(is_lifted, weight, jnp.inf)

    return jax.lax.map(one, (jax.random.split(key, codes_of(theta).shape[0]), theta), batch_size=WEIGHT_BATCH)


def codes_of(position: Any) -> Any:
    """The codes of the discrete variables of a configuration."""
    return position.theta if isinstance(position, Configuration) else position


def lift_by_rejection(key, draw, push, theta: Position) -> Float[Array, " all"]:
    """Draws z by `draw(key)` until `push(z)` gives theta back (its reals up to rounding).

    The cell is what `push` says it is, in floating point: a draw so near a border that rounding carries it across
    lies outside the cell, and is drawn again. Almost always the first draw is inside. A cell too thin for floating
    point gives NaN after 64 tries: latent moves from there are rejected, which keeps them exact.
    """

    def try_again(carry):
        count, _, _ = carry
        z = draw(jax.random.fold_in(key, count))
        theta_back, log_volume = push(z)
        return count + 1, z, jnp.all(codes_of(theta_back) == codes) & jnp.isfinite(log_volume)

    codes, shape = codes_of(theta), jax.eval_shape(draw, key).shape
    start = (jnp.asarray(0, jnp.int32), jnp.zeros(shape, jnp.result_type(float)), jnp.asarray(False))
    _, z, is_found = jax.lax.while_loop(lambda c: ~c[2] & (c[0] < MAX_TRIES), try_again, start)
    return jnp.where(is_found, z, jnp.nan)
