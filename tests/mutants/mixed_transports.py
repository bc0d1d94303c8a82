"""Planted mistakes in transports on mixed spaces. Each names the law that must catch it."""

import jax.numpy as jnp

from terrazzo.spaces import Configuration
from terrazzo.transports import FlowTransport, MixedAutoregressiveTransport, normal, sites
from terrazzo.transports.base import Pushed


class NoSplineLogDet(MixedAutoregressiveTransport):
    """log q of a real without the derivative of its spline: log p(z) - log |scale| alone."""

    def push(self, z):
        found, log_volume = super().push(z)
        outputs = self._scored_all(found)[4]
        is_real = self._coordinates().is_real
        raw = outputs[:, 2 : sites.NUM_REAL_OUTPUTS]
        w = normal.normal_to_logistic(z[self.order])[0] / sites.LOGISTIC_SD
        logs = jnp.stack([sites.spline.transform(w[i], raw[i])[1] for i in range(len(z))])
        return Pushed(found, log_volume - jnp.sum(jnp.where(is_real, logs, 0.0)))


class NoScale(MixedAutoregressiveTransport):
    """The overall scale of the reals is left out of the volume."""

    def push(self, z):
        found, log_volume = super().push(z)
        return Pushed(found, log_volume - jnp.sum(self.log_scale))


class LiftIgnoresReals(MixedAutoregressiveTransport):
    """lift takes another y than the one it was given."""

    def drawer(self, theta):
        return super().drawer(Configuration(theta.theta, 0.5 * theta.reals))


class LiftAtOtherReals(MixedAutoregressiveTransport):
    """The z of the reals is right; the cells of the sites are those of another y."""

    def drawer(self, theta):
        right, wrong = super().drawer(theta), super().drawer(Configuration(theta.theta, theta.reals + 3.0))
        d = self.space.num_dims
        return lambda key: jnp.concatenate([wrong(key)[:d], right(key)[d:]])

    def lift(self, key, theta):
        return self.drawer(theta)(key)


class FlowLogDetTooSmall(FlowTransport):
    """The log-determinant of the bijection x 0.95."""

    def push(self, z):
        found, log_volume = super().push(z)
        return Pushed(found, log_volume - 0.05 * self.bijection.transform_and_log_det(z)[1])


class FlowNoScale(FlowTransport):
    """The scale of the reals is left out of the volume."""

    def push(self, z):
        found, log_volume = super().push(z)
        return Pushed(found, log_volume - jnp.sum(self._log_spread()))


MUTANTS = {
    "forgotten log-det of the spline": (NoSplineLogDet, "quadrature"),
    "forgotten scale": (NoScale, "quadrature"),
    "lift ignores y": (LiftIgnoresReals, "round trip"),
    "lift at the cells of another y": (LiftAtOtherReals, "round trip"),
    "log-det x 0.95": (FlowLogDetTooSmall, "quadrature"),
    "forgotten scale in the flow": (FlowNoScale, "quadrature"),
}
