"""Dequantizers: densities q(u | theta) on the open cube (0, 1)^d, drawn and evaluated through w = logit(u).

Working with w keeps full precision at both ends of the cell (docs/theory.md, trap 2):
log q(u | theta) = log q(w | theta) - sum(log u + log(1 - u)).
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from terrazzo.transports import normal
from terrazzo.transports.couplings import Bijection


class AbstractDequantizer(eqx.Module):
    """q(u | theta), given a real context: theta scaled to [-1, 1], and what is seen of real variables."""

    @abstractmethod
    def log_density(
        self, log_u: Float[Array, " dim"], log_1mu: Float[Array, " dim"], context: Float[Array, " context"]
    ) -> Float[Array, ""]:
        """log q(u | theta) from log u and log(1 - u)."""

    @abstractmethod
    def draw(self, key: Array, context: Float[Array, " context"], num_dims: int | None = None) -> Float[Array, " dim"]:
        """A draw of w = logit(u), of `num_dims` coordinates; by default one for each number of the context."""


class UniformDequantizer(AbstractDequantizer):
    """u uniform on the cell: the embedding of Nishimura et al. (2020)."""

    def log_density(self, log_u: Array, log_1mu: Array, context: Array) -> Float[Array, ""]:
        return jnp.zeros((), log_u.dtype)

    def draw(self, key: Array, context: Array, num_dims: int | None = None) -> Array:
        return jax.random.logistic(key, (context.size if num_dims is None else num_dims,), context.dtype)


class FlowDequantizer(AbstractDequantizer):
    """A conditional flow: eps ~ N(0, I) -> T_lambda(eps; context(theta)) -> w (the paper's Eq. (dequan)).

    Attributes:
        bijection: T_lambda, given the context as its condition.
        context_net: Features of theta that all layers see.
        is_gaussian_tailed: Whether `normal_to_logistic` follows, so that the identity flow gives a near-uniform u.
    """

    bijection: Bijection
    context_net: eqx.nn.MLP
    is_gaussian_tailed: bool = eqx.field(static=True)

    def log_density(self, log_u: Array, log_1mu: Array, context: Array) -> Float[Array, ""]:
        w = log_u - log_1mu
        log_det = -jnp.sum(log_u + log_1mu)
        if self.is_gaussian_tailed:
            y = normal.logistic_to_normal(w)
            log_det = log_det - jnp.sum(normal.normal_to_logistic(y)[1])
        else:
            y = w
        eps, log_det_flow = self.bijection.inverse_and_log_det(y, self.context_net(context))
        return normal.log_density(eps) + log_det_flow + log_det

    def draw(self, key: Array, context: Array, num_dims: int | None = None) -> Array:
        eps = jax.random.normal(key, (context.size if num_dims is None else num_dims,), context.dtype)
        y, _ = self.bijection.transform_and_log_det(eps, self.context_net(context))
        return normal.normal_to_logistic(y)[0] if self.is_gaussian_tailed else y
