"""The flow transport of the paper: z -> T_phi -> scaled sigmoid -> floor, with a learned dequantizer.

    x = T_phi(z) in prod_i (0, K_i),   theta = floor(x),   u = x - theta,
    v(z) = log q_lambda(u | theta) + log |T_phi'(z)|,      lift: u ~ q_lambda(. | theta), z = T_phi^-1(theta + u).

T_phi is a stack of coupling bijections with shuffles (or any other `Bijection`), then (but for the paper's
architecture) a fixed cubic close to logit(Phi(.)), then the scaled sigmoid. With the cubic the identity flow makes x
nearly uniform with Gaussian tails in z; without it the latent density has the logistic's heavier tails.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.errors import TransportError, arguments
from terrazzo.spaces import Space, as_discrete_space
from terrazzo.transports import cells, networks, normal
from terrazzo.transports.base import AbstractTransport, Pushed, Relaxed, Scored, lift_by_rejection
from terrazzo.transports.couplings import Bijection, CouplingStack
from terrazzo.transports.dequantizers import AbstractDequantizer, FlowDequantizer, UniformDequantizer

ARCHITECTURES = ("spline", "affine", "paper")
DEQUANTIZERS = ("flow", "uniform")


class FlowTransport(AbstractTransport):
    """The SurVAE flow transport. Build it with `flow_transport`."""

    has_straight_through: ClassVar[bool] = True
    has_exact_dequantizer: ClassVar[bool] = False
    space: Space = eqx.field(static=True)
    bijection: Bijection
    dequantizer: AbstractDequantizer
    architecture: str = eqx.field(static=True)

    @property
    def is_gaussian_tailed(self) -> bool:
        return self.architecture != "paper"

    def describe(self) -> dict[str, Any]:
        """The options of `flow_transport` that build the same shapes."""
        if not isinstance(self.bijection, CouplingStack):
            raise TransportError("transport", "has a bijection of its own", "only built-in architectures are storable")
        layers = self.bijection.nets.layers
        options = {
            "architecture": self.architecture,
            "num_layers": self.bijection.shuffles.shape[0],
            "width": layers[0].weight.shape[1],
            "depth": len(layers) - 1,
        }
        if isinstance(self.dequantizer, FlowDequantizer):
            return {**options, "dequantizer": "flow", "context_width": self.dequantizer.context_net.out_size}
        return {**options, "dequantizer": "uniform"}

    def _sizes(self) -> Float[Array, " dim"]:
        return jnp.asarray(self.space.sizes, jnp.result_type(float))

    def _context(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return 2.0 * theta / (self._sizes() - 1.0) - 1.0

    def _forward(self, z: Float[Array, " dim"]) -> tuple[Array, Array]:
        """z to the pre-sigmoid y, with log |dy/dz|."""
        y, log_det = self.bijection.transform_and_log_det(z)
        if self.is_gaussian_tailed:
            y, log_det_tail = normal.normal_to_logistic(y)
            log_det = log_det + jnp.sum(log_det_tail)
        return y, log_det

    def _inverse(self, y: Float[Array, " dim"]) -> tuple[Array, Array]:
        """Pre-sigmoid y to z, with log |dz/dy| up to a term without weights."""
        inner = normal.logistic_to_normal(y) if self.is_gaussian_tailed else y
        return self.bijection.inverse_and_log_det(inner)

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

    def push(self, z: Float[Array, " dim"]) -> Pushed:
        with jax.default_matmul_precision("highest"):
            y, log_det = self._forward(z)
            theta = cells.cell(y, self._sizes())
            real = theta.astype(y.dtype)
            return Pushed(theta, self._volume(y, log_det, real, self._context(real)))

    def push_relaxed(self, z: Float[Array, " dim"], *, is_offset_held: bool = False) -> Relaxed:
        with jax.default_matmul_precision("highest"):
            y, log_det = self._forward(z)
            real = cells.cell(y, self._sizes()).astype(y.dtype)
            x = self._sizes() * jax.nn.sigmoid(y)
            relaxed = real + (x - jax.lax.stop_gradient(x))
            context = self._context(real)  # of theta itself: its derivative is 0, and only log pi gets another one
            return Relaxed(relaxed, self._volume(y, log_det, real, context, is_offset_held=is_offset_held))

    def lift(self, key: Array, theta: Int[Array, " dim"]) -> Float[Array, " dim"]:
        real = theta.astype(jnp.result_type(float))
        context = self._context(real)

        def draw(key: Array) -> Array:
            y = cells.embed(real, self.dequantizer.draw(key, context), self._sizes())
            return self._inverse(y)[0]

        with jax.default_matmul_precision("highest"):
            return lift_by_rejection(key, draw, self.push, theta)

    def push_scored(self, z: Float[Array, " dim"]) -> Scored:
        with jax.default_matmul_precision("highest"):
            y, log_det = jax.lax.stop_gradient(self._forward(z))
            size = self._sizes()
            theta = cells.cell(y, size)
            real = theta.astype(y.dtype)
            inside = cells.is_inside(y, real, size)
            y = jnp.where(inside, y, cells.embed(real, jnp.zeros_like(y), size))
            log_u, log_1mu = cells.log_offsets(y, real, size)
            log_q = self.dequantizer.log_density(log_u, log_1mu, self._context(real))
            value = jax.lax.stop_gradient(log_q) + log_det + cells.log_det(y, size)
            z_back, log_det_back = self._inverse(y)
            log_model = normal.log_density(z_back) + log_det_back
            return Scored(theta, jnp.where(jnp.all(inside), value, -jnp.inf), log_model, log_q)

    def log_likelihood(self, key: Array, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        with jax.default_matmul_precision("highest"):
            size, real = self._sizes(), theta.astype(jnp.result_type(float))
            context = self._context(real)
            w = self.dequantizer.draw(key, context)
            log_q = self.dequantizer.log_density(jax.nn.log_sigmoid(w), jax.nn.log_sigmoid(-w), context)
            y = cells.embed(real, w, size)
            z, log_det = self._inverse(y)
            if self.is_gaussian_tailed:
                log_det = log_det - jnp.sum(normal.normal_to_logistic(normal.logistic_to_normal(y))[1])
            return normal.log_density(z) + log_det - cells.log_det(y, size) - log_q


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
    num_dims, gaussian_tailed = space.num_dims, architecture != "paper"
    transformer = "spline" if architecture == "spline" else "affine"
    shape: dict[str, Any] = {
        "num_dims": num_dims,
        "transformer": transformer,
        "num_layers": num_layers,
        "width": width,
        "depth": depth,
    }
    bijection = CouplingStack(flow_key, **shape)
    if dequantizer == "uniform":
        return FlowTransport(space, bijection, UniformDequantizer(), architecture)
    conditional = CouplingStack(dequantizer_key, cond_dim=context_width, **shape)
    context_net = networks.make_mlp(networks.generator(context_key), num_dims, context_width, width, 1)
    return FlowTransport(space, bijection, FlowDequantizer(conditional, context_net, gaussian_tailed), architecture)


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
    >>> transport.push(jax.numpy.zeros(4)).theta.shape
    (4,)
    """
    space = as_discrete_space(space, "transport")
    if architecture is None:
        architecture = "affine" if space.is_binary else "spline"
    for name, value, allowed in (
        ("architecture", architecture, ARCHITECTURES),
        ("dequantizer", dequantizer, DEQUANTIZERS),
    ):
        arguments.choice(name, value, tuple(allowed))
    is_large = space.num_dims > 32
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
