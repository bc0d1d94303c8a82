"""The autoregressive transport on mixed spaces: categoricals for sites, bijections for reals, given all earlier ones.

    theta_i = inverse CDF of q(theta_i | earlier) at Phi(z_i),      y_j = location_j + scale_j r_j(z_j | earlier),
    v(z) = log p(z) - log q(theta, y),      log q = sum_i log q(theta_i | .) + sum_j log p(z_j) - log |dy_j / dz_j|

The weight p~/p = pi / q depends on (theta, y) alone (docs/theory.md, "Mixed spaces"). Coordinates are numbered sites
first, then reals; they may be decoded in any order. Every position has one head, whose first outputs are read as those
of its kind.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.spaces import Configuration, Space
from terrazzo.transports import normal, sites
from terrazzo.transports.base import Scored
from terrazzo.transports.causal import AbstractCausalTransport, causal_network
from terrazzo.transports.sites import SiteHead


class _Coordinates(NamedTuple):
    """What is known of each coordinate, in decoding order.

    Attributes:
        is_real: Whether it is a real one, not a site.
        size: The values of a site; 1 for reals.
        is_ordered: Whether the values of a site are ordered.
        location: Where a real lies, about; 0 for sites.
        log_scale: The logarithm of its spread, about; 0 for sites.
    """

    is_real: Bool[Array, " all"]
    size: Int[Array, " all"]
    is_ordered: Bool[Array, " all"]
    location: Float[Array, " all"]
    log_scale: Float[Array, " all"]


class MixedAutoregressiveTransport(AbstractCausalTransport):
    """A causal network over sites and reals. Build it with `autoregressive_transport`.

    Attributes:
        location: Where each real lies, about; learned with the network.
        log_scale: The logarithm of its spread, about.
    """

    location: Float[Array, " real"]
    log_scale: Float[Array, " real"]

    def _coordinates(self) -> _Coordinates:
        d, m, order = self.space.num_dims, self.space.num_reals, self.order
        joined = lambda first, last: jnp.concatenate([first, last])[order]
        zeros = jnp.zeros(d, self.location.dtype)
        return _Coordinates(
            joined(jnp.zeros(d, bool), jnp.ones(m, bool)),
            joined(jnp.asarray(self.space.sizes), jnp.ones(m, jnp.int32)),
            joined(jnp.asarray(self.space.is_ordered), jnp.zeros(m, bool)),
            joined(zeros, self.location),
            joined(zeros, self.log_scale),
        )

    def _features(self, theta: Array, r: Array, at: _Coordinates) -> Float[Array, " inputs"]:
        """What later coordinates see of this one."""
        of_site = self._site.features(theta, at.size).astype(r.dtype)
        of_real = sites.real_features(r)
        num_inputs = self.network.embedding.shape[1]
        padded = lambda x: jnp.pad(x, (0, num_inputs - x.size))
        return jnp.where(at.is_real, padded(of_real), padded(of_site))

    def _of_site(self, outputs: Array) -> Array:
        return outputs[: self._site.num_outputs]

    def _of_real(self, outputs: Array) -> Array:
        return outputs[: sites.NUM_REAL_OUTPUTS]

    def _split(self, theta: Array, y: Array) -> tuple[Array, Array]:
        """Codes and reals at all coordinates in decoding order, 0 where a coordinate is of the other kind."""
        d, m = self.space.num_dims, self.space.num_reals
        codes = jnp.concatenate([theta, jnp.zeros(m, theta.dtype)])[self.order]
        return codes, jnp.concatenate([jnp.zeros(d, y.dtype), y])[self.order]

    def _scored_all(self, position: Configuration) -> tuple[Array, Array, Array, _Coordinates, Array]:
        """Codes, z of reals, log q of each coordinate, what is known of each, and outputs; in decoding order."""
        at = self._coordinates()
        codes, y = self._split(position.theta, position.reals)
        r = sites.standardised(y, at.location, at.log_scale)
        outputs = self.network.all_outputs(jax.vmap(self._features)(codes, r, at))
        z, log_det = jax.vmap(lambda r, o: sites.real_inverse(r, self._of_real(o)))(r, outputs)
        mass = jax.vmap(lambda o, theta, size: self._site.log_mass(self._of_site(o), theta, size))
        log_q = jnp.where(
            at.is_real, normal.log_pdf(z) + log_det - at.log_scale, mass(outputs, codes, at.size)
        )  # fmt: skip
        return codes, z, log_q, at, outputs

    def log_prob(self, theta: Configuration) -> Float[Array, ""]:
        """log q(theta, y), with respect to counting x Lebesgue measure of y, in one parallel pass."""
        with jax.default_matmul_precision("highest"):
            return jnp.sum(self._scored_all(theta)[2])

    def _decoded(self, z: Float[Array, " all"], *, is_rough: bool) -> tuple[Configuration, Array, Array]:
        """The configuration, and log q of its sites and of its reals; with derivatives along the reals."""
        at = self._coordinates()
        select = self._site.select_roughly if is_rough else self._site.select

        def place(outputs: Array, given: tuple[Array, _Coordinates]) -> tuple[Array, tuple]:
            z_t, at = given
            of_site = self._of_site(outputs)
            theta = jax.lax.stop_gradient(select(jax.lax.stop_gradient(of_site), z_t, at.size, at.is_ordered))
            r, log_det = sites.real_transform(z_t, self._of_real(outputs))
            y = at.location + jnp.exp(at.log_scale) * r
            log_site = jnp.where(at.is_real, 0.0, self._site.log_mass(of_site, theta, at.size))
            log_real = jnp.where(at.is_real, normal.log_pdf(z_t) - log_det - at.log_scale, 0.0)
            return self._features(theta, r, at), (theta, y, log_site, log_real)

        theta, y, log_site, log_real = self.network.decode(place, (z[self.order], at))
        d = self.space.num_dims
        found = Configuration(self.network.scattered(theta)[:d], self.network.scattered(y)[d:])
        return found, jnp.sum(log_site), jnp.sum(log_real)

    def decode(self, z: Float[Array, " all"]) -> tuple[Configuration, Array]:
        """The configuration and log q of it, one coordinate after the other."""
        found, log_site, log_real = self._decoded(jnp.where(jnp.isfinite(z), z, 0.0), is_rough=False)
        return found, log_site + log_real

    def drawer(self, theta: Configuration) -> Callable[[Array], Float[Array, " all"]]:
        """`key -> z`: the z of the reals, and draws inside the cells of the sites."""
        with jax.default_matmul_precision("highest"):
            codes, z_real, _, at, outputs = self._scored_all(theta)
        inside = lambda key, o, *rest: self._site.draw_inside(key, self._of_site(o), *rest)

        def draw(key: Array) -> Array:
            keys = jax.random.split(key, self.num_dims)
            z_site = jax.vmap(inside)(keys, outputs, codes, at.size, at.is_ordered)
            return self.network.scattered(jnp.where(at.is_real, z_real, z_site))

        return draw

    def push_scored(self, z: Float[Array, " all"]) -> Scored:
        """Sites by the score function, reals by the derivative of their own path.

        The score of log q at a fixed configuration has mean zero: it is left out (Roeder et al., 2017).
        """
        found, log_site, _ = self._decoded(z, is_rough=True)
        log_q = jax.lax.stop_gradient(self).log_prob(found)
        return Scored(found, normal.log_density(z) - log_q, log_site, jnp.zeros((), z.dtype))

    def placed(self, location: Any, scale: Any) -> "MixedAutoregressiveTransport":
        """The transport with its reals moved to where draws lie: their means and standard deviations."""
        return sites.placed(self, location, scale)


def build_mixed(
    space: Space, key: Array, *, width: int | None, num_blocks: int, hidden: int | None, order: Any
) -> MixedAutoregressiveTransport:
    """The transport that `autoregressive_transport` builds on a space with reals."""
    site, d, m = SiteHead(space.max_size), space.num_dims, space.num_reals
    num_outputs = max(site.num_outputs, sites.NUM_REAL_OUTPUTS)
    bias = jnp.pad(site.initial_bias(d), ((0, m), (0, num_outputs - site.num_outputs)))
    is_permutation = order is not None and sorted(np.ravel(np.asarray(order)).tolist()) == list(range(d + m))
    bias = bias[np.asarray(order)] if is_permutation else bias  # what is none is refused by the network
    network = causal_network(
        key, bias, inputs=max(site.num_inputs, sites.NUM_REAL_INPUTS), width=width, num_blocks=num_blocks,
        hidden=hidden, order=order,
    )  # fmt: skip
    return MixedAutoregressiveTransport(space, network, jnp.zeros(m), jnp.zeros(m))
