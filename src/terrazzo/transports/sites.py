"""How a network's outputs become the conditional of one coordinate: a categorical of a site, a bijection of a real.

A *site* is an integer coordinate. Up to 64 values it has a softmax head and enters a network as a unit vector; beyond
that it has a mixture of discretised logistics, and enters by features of its order (`heads`).

A *real* coordinate is y = location + scale r. Given the outputs,

    w = normal_to_logistic(z) / sd,    r = shift + e^s spline(w),

is a bijection of z. The base w is logistic with unit variance, nearly: tails that are no lighter than those of most
posteriors keep the weights pi / q bounded.

References: Salimans et al. (2017), PixelCNN++; Durkan et al. (2019), Neural Spline Flows.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Int

from terrazzo.transports import heads, inverse_cdf, normal
from terrazzo.transports.splines import rational_quadratic_spline as spline

SOFTMAX_LIMIT = 64
MAX_LOG_SCALE = 8.0  # of a real coordinate given the others, against its scale overall
LOGISTIC_SD = float(np.pi / np.sqrt(3.0))
LOG_LOGISTIC_SD = float(np.log(LOGISTIC_SD))
CENTRES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # standard deviations at which features of a real bend


@dataclass(frozen=True)
class SiteHead:
    """The conditionals of integer coordinates with up to `max_size` values.

    >>> SiteHead(3).num_outputs, SiteHead(100).is_large
    (3, True)
    """

    max_size: int

    @property
    def is_large(self) -> bool:
        """Whether values are encoded by their order and drawn from logistic mixtures."""
        return self.max_size > SOFTMAX_LIMIT

    @property
    def num_inputs(self) -> int:
        """Features of a value."""
        return heads.NUM_FEATURES if self.is_large else self.max_size

    @property
    def num_outputs(self) -> int:
        """Outputs of a network that make a conditional."""
        return heads.NUM_OUTPUTS if self.is_large else self.max_size

    def initial_bias(self, num_sites: int) -> Float[Array, "site outputs"]:
        """Outputs of nearly uniform conditionals."""
        return heads.initial_bias(num_sites) if self.is_large else jnp.zeros((num_sites, self.num_outputs))

    def features(self, theta: Int[Array, ""], size: Int[Array, ""]) -> Float[Array, " inputs"]:
        """The value as a unit vector, or features of its order."""
        if self.is_large:
            return heads.ordered_features(theta, size)
        return jax.nn.one_hot(theta, self.max_size, dtype=jnp.result_type(float))

    def log_mass(self, outputs: Array, theta: Array, size: Array) -> Float[Array, ""]:
        """log q(theta_i | outputs)."""
        if self.is_large:
            return heads.log_mass(outputs, theta, size)
        return inverse_cdf.masked_log_probs(outputs, size)[theta]

    def select(self, outputs: Array, z: Array, size: Array, is_ordered: Array) -> Int[Array, ""]:
        """The value whose cell holds z."""
        if self.is_large:
            return heads.select(outputs, z, size)
        return inverse_cdf.select(inverse_cdf.layout(inverse_cdf.masked_log_probs(outputs, size), is_ordered), z)

    def select_roughly(self, outputs: Array, z: Array, size: Array, is_ordered: Array) -> Int[Array, ""]:
        """A draw from the conditional, from the same z, without care for the tails: what training needs of a draw."""
        if self.is_large:
            return heads.select(outputs, z, size)
        log_probs = inverse_cdf.masked_log_probs(outputs, size)
        sums = jnp.exp(log_probs) @ jnp.asarray(np.tri(log_probs.size).T, log_probs.dtype)
        last = jnp.minimum(size, jnp.sum(sums < sums[-1], dtype=jnp.int32) + 1) - 1  # beyond it there is no mass
        return jnp.minimum(jnp.sum(sums <= ndtr(z), dtype=jnp.int32), last)

    def draw_inside(self, key: Array, outputs: Array, theta: Array, size: Array, is_ordered: Array) -> Array:
        """A standard normal draw restricted to the cell of theta."""
        if self.is_large:
            return heads.draw_inside(key, outputs, theta, size)
        cells = inverse_cdf.layout(inverse_cdf.masked_log_probs(outputs, size), is_ordered)
        return inverse_cdf.draw_inside(key, cells, theta)


# ---- reals

NUM_REAL_INPUTS = 1 + len(CENTRES)
NUM_REAL_OUTPUTS = 2 + spline.num_parameters


def real_features(r: Float[Array, ""]) -> Float[Array, " inputs"]:
    """What a network sees of a standardised real: its size, logarithmically in the tails, and where it lies."""
    return jnp.concatenate([jnp.arcsinh(r)[None], jnp.tanh(r - jnp.asarray(CENTRES, r.dtype))])


def _log_scale(raw: Array) -> Array:
    return MAX_LOG_SCALE * jnp.tanh(raw / MAX_LOG_SCALE)


def real_transform(z: Float[Array, ""], outputs: Float[Array, " outputs"]) -> tuple[Array, Array]:
    """r of a latent z, and log dr/dz."""
    w, log_tail = normal.normal_to_logistic(z)
    bent, log_spline = spline.transform(w / LOGISTIC_SD, outputs[2:])
    log_scale = _log_scale(outputs[0])
    return outputs[1] + jnp.exp(log_scale) * bent, log_tail - LOG_LOGISTIC_SD + log_spline + log_scale


def real_inverse(r: Float[Array, ""], outputs: Float[Array, " outputs"]) -> tuple[Array, Array]:
    """z of a real r, and log dz/dr."""
    log_scale = _log_scale(outputs[0])
    w, log_spline = spline.inverse((r - outputs[1]) * jnp.exp(-log_scale), outputs[2:])
    z = normal.logistic_to_normal(LOGISTIC_SD * w)
    log_tail = normal.normal_to_logistic(z)[1]
    return z, log_spline - log_tail + LOG_LOGISTIC_SD - log_scale


def standardised(y: Array, location: Array, log_scale: Array) -> Array:
    """r of y = location + e^log_scale r."""
    return (y - location) * jnp.exp(-log_scale)


def placed(transport: Any, location: Any, scale: Any) -> Any:
    """A transport whose `location` and `log_scale` of reals are those of draws."""
    dtype = jnp.result_type(float)
    moved = jnp.asarray(location, dtype), jnp.log(jnp.asarray(scale, dtype))
    return eqx.tree_at(lambda t: (t.location, t.log_scale), transport, moved)
