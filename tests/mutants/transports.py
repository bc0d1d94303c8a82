"""Planted mistakes in transports. Each names the law that must catch it."""

import jax
import jax.numpy as jnp

from terrazzo.transports import cells, normal
from terrazzo.transports.base import AbstractTransport, Pushed
from terrazzo.transports.flow import FlowTransport
from terrazzo.transports.product import ProductTransport


class _Wrapped(AbstractTransport):
    """A flow transport with one thing wrong."""

    has_straight_through = True
    has_exact_dequantizer = False
    inner: FlowTransport

    @property
    def space(self):
        return self.inner.space

    def _sizes(self):
        return self.inner._sizes()

    def _inverse(self, y):
        return self.inner._inverse(y)

    def _forward(self, z):
        return self.inner._forward(z)

    def push(self, z):
        return self.inner.push(z)

    def lift(self, key, theta):
        return self.inner.lift(key, theta)

    def push_relaxed(self, z, *, is_offset_held=False):
        return self.inner.push_relaxed(z, is_offset_held=is_offset_held)

    def push_scored(self, z):
        return self.inner.push_scored(z)

    def log_likelihood(self, key, theta):
        return self.inner.log_likelihood(key, theta)


class LogDetTooSmall(_Wrapped):
    def push(self, z):
        theta, log_volume = self.inner.push(z)
        return Pushed(theta, log_volume - 0.05 * self.inner._forward(z)[1])


class NoSigmoidJacobian(_Wrapped):
    def push(self, z):
        theta, log_volume = self.inner.push(z)
        y, _ = self.inner._forward(z)
        return Pushed(theta, log_volume - cells.log_det(y, self._sizes()))


class NoTailJacobian(_Wrapped):
    def push(self, z):
        theta, log_volume = self.inner.push(z)
        y, _ = self.inner.bijection.transform_and_log_det(z)
        return Pushed(theta, log_volume - jnp.sum(normal.normal_to_logistic(y)[1]))


class ClampedOffset(_Wrapped):
    """u clamped to [1e-2, 1 - 1e-2] before the dequantizer sees it."""

    def push(self, z):
        theta, log_volume = self.inner.push(z)
        y, _ = self.inner._forward(z)
        real = theta.astype(y.dtype)
        context = self.inner._context(real)
        log_u, log_1mu = cells.log_offsets(y, real, self._sizes())
        u = jnp.clip(jnp.exp(log_u), 1e-2, 1 - 1e-2)
        density = self.inner.dequantizer.log_density
        return Pushed(
            theta, log_volume - density(log_u, log_1mu, context) + density(jnp.log(u), jnp.log1p(-u), context)
        )


class NoOffsetJacobian(_Wrapped):
    """q(w | theta) used where q(u | theta) belongs."""

    def push(self, z):
        theta, log_volume = self.inner.push(z)
        y, _ = self.inner._forward(z)
        log_u, log_1mu = cells.log_offsets(y, theta.astype(y.dtype), self._sizes())
        return Pushed(theta, log_volume + jnp.sum(log_u + log_1mu))


class SaturatedFloor(_Wrapped):
    """theta = floor(K sigmoid(y)) without care: K itself in the tail."""

    def push(self, z):
        _, log_volume = self.inner.push(z)
        y, _ = self.inner._forward(z)
        return Pushed(jnp.floor(self._sizes() * jax.nn.sigmoid(y)).astype(jnp.int32), log_volume)


class ReusedKey(_Wrapped):
    """Every coordinate of the dequantizer gets the same random number."""

    def lift(self, key, theta):
        real = theta.astype(jnp.result_type(float))
        w = jnp.full(theta.shape, jax.random.logistic(key, ()))
        return self.inner._inverse(cells.embed(real, w, self._sizes()))[0]


class WrongContext(_Wrapped):
    """lift draws u for another theta than push scores it for."""

    def lift(self, key, theta):
        real = theta.astype(jnp.result_type(float))
        w = self.inner.dequantizer.draw(key, -self.inner._context(real))
        return self.inner._inverse(cells.embed(real, w, self._sizes()))[0]


class UniformLift(_Wrapped):
    """lift draws u uniformly although q(u | theta) is learned."""

    def lift(self, key, theta):
        real = theta.astype(jnp.result_type(float))
        w = jax.random.logistic(key, theta.shape)
        return self.inner._inverse(cells.embed(real, w, self._sizes()))[0]


class HotProduct(ProductTransport):
    """The probabilities of push are tempered, those of the weight are not."""

    def push(self, z):
        cold = ProductTransport(self.space, self.logits)
        hot = ProductTransport(self.space, 0.9 * self.logits)
        theta = hot.push(z).theta
        log_q = jnp.take_along_axis(cold._log_probs(), theta[:, None], axis=1).sum()
        return Pushed(theta, normal.log_density(z) - log_q)


TRANSPORT_MUTANTS = {
    "log-det x 0.95": (LogDetTooSmall, "quadrature"),
    "forgotten Jacobian of the sigmoid": (NoSigmoidJacobian, "quadrature"),
    "forgotten Jacobian of the tails": (NoTailJacobian, "quadrature"),
    "clamped u": (ClampedOffset, "quadrature"),
    "forgotten Jacobian of the offset": (NoOffsetJacobian, "quadrature"),
    "theta = K": (SaturatedFloor, "support"),
    "reused key": (ReusedKey, "lift"),
    "wrong context": (WrongContext, "lift"),
    "uniform lift": (UniformLift, "lift"),
    "hot product": (HotProduct, "identity"),
}
