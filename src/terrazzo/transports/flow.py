"""The flow transport of the paper: z -> T_phi -> scaled sigmoid -> floor, with a learned dequantizer.

    x = T_phi(z) in prod_i (0, K_i),   theta = floor(x),   u = x - theta,
    v(z) = log q_lambda(u | theta) + log |T_phi'(z)|,      lift: u ~ q_lambda(. | theta), z = T_phi^-1(theta + u).

T_phi is a stack of coupling bijections with shuffles (or any other `Bijection`), then (but for the paper's
architecture) a fixed cubic close to logit(Phi(.)), then the scaled sigmoid. With the cubic the identity flow makes x
nearly uniform with Gaussian tails in z; without it the latent density has the logistic's heavier tails.

Real coordinates take part in T_phi beside the others, and skip the floor: y = location + scale r, with r the rest of
T_phi(z) (after the cubic, divided by the logistic's standard deviation). The dequantizer sees them, q(u | theta, y).
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from terrazzo.errors import TransportError, arguments
from terrazzo.spaces import Configuration, Space, as_space
from terrazzo.transports import cells, networks, normal
from terrazzo.transports.base import AbstractTransport, Position, Pushed, Relaxed, Scored, codes_of, lift_by_rejection
from terrazzo.transports.couplings import Bijection, CouplingStack
from terrazzo.transports.dequantizers import AbstractDequantizer, FlowDequantizer, UniformDequantizer
from terrazzo.transports.sites import LOG_LOGISTIC_SD, placed

ARCHITECTURES = ("spline", "affine", "paper")
DEQUANTIZERS = ("flow", "uniform")


class FlowTransport(AbstractTransport):
    """The SurVAE flow transport. Build it with `flow_transport`.

    Attributes:
        space: The space.
        bijection: T_phi, of all coordinates: those with values first, then the real ones.
        dequantizer: q(u | theta), and given the reals where there are any.
        architecture: One of `ARCHITECTURES`.
        location: Where each real lies, about; learned with the rest. None without reals.
        log_scale: The logarithm of its spread, about.
    """

    has_straight_through: ClassVar[bool] = True
    has_exact_dequantizer: ClassVar[bool] = False
    space: Space = eqx.field(static=True)
    bijection: Bijection
    dequantizer: AbstractDequantizer
    architecture: str = eqx.field(static=True)
    location: Float[Array, " real"] | None = None
    log_scale: Float[Array, " real"] | None = None

    @property
    def is_gaussian_tailed(self) -> bool:
        return self.architecture != "paper"

    def describe(self) -> dict[str, Any]:
        """The options of `flow_transport` that build the same shapes."""
        if not isinstance(self.bijection, CouplingStack):
            raise TransportError("transport", "has a bijection of its own", "only built-in architectures are storable")
        options = {"architecture": self.architecture, **self.bijection.describe()}
        if isinstance(self.dequantizer, FlowDequantizer):
            return {**options, "dequantizer": "flow", "context_width": self.dequantizer.context_net.out_size}
        return {**options, "dequantizer": "uniform"}

    def _sizes(self) -> Float[Array, " dim"]:
        return jnp.asarray(self.space.sizes, jnp.result_type(float))

    def _context(self, theta: Float[Array, " dim"], y: Array | None = None) -> Float[Array, " context"]:
        """What the dequantizer sees: theta scaled to [-1, 1], and the reals y, squashed."""
        scaled = 2.0 * theta / (self._sizes() - 1.0) - 1.0
        if self.location is None or self.log_scale is None or y is None:
            return scaled
        return jnp.concatenate([scaled, jnp.tanh(0.5 * (y - self.location) * jnp.exp(-self.log_scale))])

    def _forward(self, z: Float[Array, " all"]) -> tuple[Array, Array]:
        """z to the pre-sigmoid y and the reals after it, with the log-determinant."""
        y, log_det = self.bijection.transform_and_log_det(z)
        if self.is_gaussian_tailed:
            y, log_det_tail = normal.normal_to_logistic(y)
            log_det = log_det + jnp.sum(log_det_tail)
        if self.location is None:
            return y, log_det
        shift = self._log_spread()
        d = self.space.num_dims
        return jnp.concatenate([y[:d], self.location + jnp.exp(shift) * y[d:]]), log_det + jnp.sum(shift)

    def _log_spread(self) -> Float[Array, " real"]:
        """The logarithm of what the reals are multiplied by last."""
        assert self.log_scale is not None
        return self.log_scale - LOG_LOGISTIC_SD if self.is_gaussian_tailed else self.log_scale

    def _inverse(self, y: Float[Array, " all"]) -> tuple[Array, Array]:
        """Pre-sigmoid y, and the reals after it, to z, with the log-determinant up to a term without weights."""
        if self.location is None:
            inner = normal.logistic_to_normal(y) if self.is_gaussian_tailed else y
            return self.bijection.inverse_and_log_det(inner)
        d, shift = self.space.num_dims, self._log_spread()
        inner = jnp.concatenate([y[:d], (y[d:] - self.location) * jnp.exp(-shift)])
        log_det = -jnp.sum(shift)
        if self.is_gaussian_tailed:
            inner = normal.logistic_to_normal(inner)
            log_det = log_det - jnp.sum(normal.normal_to_logistic(inner[d:])[1])
        z, log_det_flow = self.bijection.inverse_and_log_det(inner)
        return z, log_det + log_det_flow

    def _volume(
        self, y: Array, log_det: Array, theta: Array, context: Array, *, is_offset_held: bool = False
    ) -> Float[Array, ""]:
        """v from the pre-sigmoid y; -inf on a border or at infinity. An offset u that is held carries no derivative."""
        size = self._sizes()
        inside = cells.is_inside(y, theta, size)
        # A y on a border would poison derivatives through `where`, so those coordinates are moved to a safe place.
        y = jnp.where(inside, y, cells.embed(theta, jnp.zeros_like(y), size))
        log_u, log_1mu = cells.log_offsets(jax.lax.stop_gradient(y) if is_offset_held else y, theta, size)
        log_q = self.dequantizer.log_density(log_u, log_1mu, context)
        value = log_q + log_det + cells.log_det(y, size)
        return jnp.where(jnp.all(inside), value, -jnp.inf)

    def _parts(self, y: Float[Array, " all"], size: Array) -> tuple[Array, Array, Any]:
        """The pre-sigmoid y, theta made real, and the configuration."""
        d = self.space.num_dims
        before = y if self.location is None else y[:d]
        theta = cells.cell(before, size)
        found = theta if self.location is None else Configuration(theta, y[d:])
        return before, theta.astype(y.dtype), found

    def push(self, z: Float[Array, " all"]) -> Pushed:
        with jax.default_matmul_precision("highest"):
            y, log_det = self._forward(z)
            before, real, found = self._parts(y, self._sizes())
            volume = self._volume(before, log_det, real, self._context(real, _reals_of(found)))
            if self.location is not None:
                volume = jnp.where(jnp.all(jnp.isfinite(y)), volume, -jnp.inf)
            return Pushed(found, volume)

    def push_relaxed(self, z: Float[Array, " dim"], *, is_offset_held: bool = False) -> Relaxed:
        if self.location is not None:
            raise TransportError("transport", "has no relaxed theta beside reals", "train it by the score function")
        with jax.default_matmul_precision("highest"):
            y, log_det = self._forward(z)
            real = cells.cell(y, self._sizes()).astype(y.dtype)
            x = self._sizes() * jax.nn.sigmoid(y)
            relaxed = real + (x - jax.lax.stop_gradient(x))
            context = self._context(real)  # of theta itself: its derivative is 0, and only log pi gets another one
            return Relaxed(relaxed, self._volume(y, log_det, real, context, is_offset_held=is_offset_held))

    def lift(self, key: Array, theta: Position) -> Float[Array, " all"]:
        real, reals = codes_of(theta).astype(jnp.result_type(float)), _reals_of(theta)
        context = self._context(real, reals)

        def draw(key: Array) -> Array:
            w = self.dequantizer.draw(key, context, self.space.num_dims)
            return self._inverse(_joined(cells.embed(real, w, self._sizes()), reals))[0]

        with jax.default_matmul_precision("highest"):
            return lift_by_rejection(key, draw, self.push, theta)

    def push_scored(self, z: Float[Array, " all"]) -> Scored:
        with jax.default_matmul_precision("highest"):
            y, log_det = jax.lax.stop_gradient(self._forward(z))
            size = self._sizes()
            before, real, found = self._parts(y, size)
            inside = cells.is_inside(before, real, size)
            before = jnp.where(inside, before, cells.embed(real, jnp.zeros_like(before), size))
            log_u, log_1mu = cells.log_offsets(before, real, size)
            log_q = self.dequantizer.log_density(log_u, log_1mu, self._context(real, _reals_of(found)))
            value = jax.lax.stop_gradient(log_q) + log_det + cells.log_det(before, size)
            z_back, log_det_back = self._inverse(_joined(before, _reals_of(found)))
            log_model = normal.log_density(z_back) + log_det_back
            return Scored(found, jnp.where(jnp.all(inside), value, -jnp.inf), log_model, log_q)

    def log_likelihood(self, key: Array, theta: Position) -> Float[Array, ""]:
        with jax.default_matmul_precision("highest"):
            size, real = self._sizes(), codes_of(theta).astype(jnp.result_type(float))
            context = self._context(real, _reals_of(theta))
            w = self.dequantizer.draw(key, context, self.space.num_dims)
            log_q = self.dequantizer.log_density(jax.nn.log_sigmoid(w), jax.nn.log_sigmoid(-w), context)
            before = cells.embed(real, w, size)
            z, log_det = self._inverse(_joined(before, _reals_of(theta)))
            if self.is_gaussian_tailed:
                log_det = log_det - jnp.sum(normal.normal_to_logistic(normal.logistic_to_normal(before))[1])
            return normal.log_density(z) + log_det - cells.log_det(before, size) - log_q

    def for_drawing(self) -> "FlowTransport":
        is_stack = lambda x: isinstance(x, CouplingStack)
        return jax.tree.map(lambda x: x.unstacked() if is_stack(x) else x, self, is_leaf=is_stack)

    def placed(self, location: Any, scale: Any) -> "FlowTransport":
        """The transport with its reals moved to where draws lie: their means and standard deviations."""
        return placed(self, location, scale)


def _reals_of(position: Any) -> Any:
    return position.reals if isinstance(position, Configuration) else None


def _joined(before: Array, reals: Array | None) -> Array:
    return before if reals is None else jnp.concatenate([before, reals])


def _build(
    key: Array,
    space: Space,
    architecture: str,
    dequantizer: str,
    num_layers: int,
    width: int,
    depth: int,
    context_width: int,
) -> FlowTransport:
    flow_key, dequantizer_key, context_key = jax.random.split(key, 3)
    num_dims, num_reals, gaussian_tailed = space.num_dims, space.num_reals, architecture != "paper"
    transformer = "spline" if architecture == "spline" else "affine"
    shape: dict[str, Any] = {
        "transformer": transformer,
        "num_layers": num_layers,
        "width": width,
        "depth": depth,
    }
    bijection = CouplingStack(flow_key, num_dims=num_dims + num_reals, **shape)
    reals = (jnp.zeros(num_reals), jnp.zeros(num_reals)) if num_reals else ()
    if dequantizer == "uniform" or not num_dims:
        return FlowTransport(space, bijection, UniformDequantizer(), architecture, *reals)
    conditional = CouplingStack(dequantizer_key, num_dims=num_dims, cond_dim=context_width, **shape)
    context_net = networks.make_mlp(networks.generator(context_key), num_dims + num_reals, context_width, width, 1)
    learned = FlowDequantizer(conditional, context_net, gaussian_tailed)
    return FlowTransport(space, bijection, learned, architecture, *reals)


def flow_transport(
    space: Any,
    *,
    key: Array,
    architecture: str | None = None,
    dequantizer: str = "flow",
    num_layers: int | None = None,
    width: int | None = None,
    depth: int = 1,
    context_width: int | None = None,
) -> FlowTransport:
    """Builds an untrained flow transport with defaults from d and K alone.

    Args:
        space: The space (or a single variable).
        key: Random key for the initial weights.
        architecture: "spline" (rational-quadratic-spline couplings, the default), "affine" (the default for binary
            spaces, whose two cells need no finer map), or "paper" (the paper's own: 4 affine couplings of width 256
            up to 32 coordinates, 8 of width 512 beyond, tanh-exp scale, plain sigmoid).
        dequantizer: "flow" (learned) or "uniform" (Nishimura et al. 2020).
        num_layers: Number of couplings, in the flow and in the dequantizer each.
        width: Hidden width of each conditioner.
        depth: Hidden layers of each conditioner.
        context_width: Features of theta that the dequantizer sees.

    >>> import jax, terrazzo as tz
    >>> transport = flow_transport(tz.binary(4), key=jax.random.key(0))
    >>> jax.jit(jax.vmap(transport.push))(jax.numpy.zeros((5, 4))).theta.shape
    (5, 4)
    """
    space = as_space(space)
    if architecture is None:
        architecture = "affine" if space.is_binary and not space.num_reals else "spline"
    for name, value, allowed in (
        ("architecture", architecture, ARCHITECTURES),
        ("dequantizer", dequantizer, DEQUANTIZERS),
    ):
        arguments.choice(name, value, tuple(allowed))
    is_large = space.num_dims + space.num_reals > 32
    if architecture == "paper":
        defaults = (8, 512, 512) if is_large else (4, 256, 256)
    else:
        defaults = (6 if is_large else 4, 128 if is_large else 64, 64 if is_large else 32)
    num_layers = defaults[0] if num_layers is None else num_layers
    width = defaults[1] if width is None else width
    context_width = defaults[2] if context_width is None else context_width
    counts = {"num_layers": num_layers, "width": width, "depth": depth, "context_width": context_width}
    for name, count in counts.items():
        arguments.count(name, count, high=2**20)
    arguments.random_key(key)
    return _build(key, space, architecture, dequantizer, num_layers, width, depth, context_width)
