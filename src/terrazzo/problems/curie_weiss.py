"""The Curie-Weiss model: all spins pull on each other equally. Two modes far apart, and everything exact at any size.

    log pi(s) = J / (2d) M^2 + h M,    M = sum_i s_i,  s = 2 theta - 1

Only M matters, so log Z is a sum over d + 1 terms. For J > 1 and a small h there are two modes near M = +-m d; their
weights are known, which makes this the cheapest honest test of crossing between modes.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import gammaln, logsumexp

from terrazzo.errors import arguments
from terrazzo.problems.base import Problem, as_floats
from terrazzo.spaces import binary
from terrazzo.targets.target import Target


class CurieWeiss(eqx.Module):
    """log pi by the magnetisation."""

    coupling: Float[Array, ""]
    field: Float[Array, ""]

    def __call__(self, theta: Any) -> Float[Array, ""]:
        total = 2 * jnp.sum(theta.astype(self.field.dtype)) - theta.shape[0]
        return self.coupling / (2 * theta.shape[0]) * total**2 + self.field * total

    def site_logits(self, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " two"]:
        """Log pi with site i down and up, up to a constant."""
        spins = 2 * theta.astype(self.field.dtype) - 1
        local = self.coupling / theta.shape[0] * (jnp.sum(spins) - spins[i]) + self.field
        return jnp.stack([-local, local])


def curie_weiss(num_spins: int = 64, coupling: float = 1.2, field: float = 0.0) -> Problem:
    """The Curie-Weiss model, with exact answers at any size.

    Args:
        num_spins: d.
        coupling: J; two modes above 1.
        field: h; tilts the balance of the modes by about 2 h m d nats.

    Returns:
        The problem; `truth` holds `mean` (P(theta_i = 1), the same for all i), `num_up` (the law of the number of
        spins up, d + 1 probabilities) and `mean_log_prob`.

    Reference: Friedli & Velenik (2017), Statistical mechanics of lattice systems, chapter 2.

    >>> problem = curie_weiss(10, coupling=1.5)
    >>> round(problem.log_z, 6), round(problem.truth["mean"], 12)
    (9.105117, 0.5)
    """
    num_spins = arguments.count("num_spins", num_spins, low=2, high=2**24)
    coupling, field = arguments.finite("coupling", coupling), arguments.finite("field", field)
    fn = CurieWeiss(as_floats(coupling), as_floats(field))
    up = np.arange(num_spins + 1)
    total = 2 * up - num_spins
    log_pi = coupling / (2 * num_spins) * total**2 + field * total
    log_terms = gammaln(num_spins + 1) - gammaln(up + 1) - gammaln(num_spins - up + 1) + log_pi
    log_z = float(logsumexp(log_terms))
    shares = np.exp(log_terms - log_z)
    truth = {"mean": float(shares @ up / num_spins), "num_up": shares, "mean_log_prob": float(shares @ log_pi)}
    target = Target(fn, binary(num_spins), site_logits=fn.site_logits)
    summary = f"Curie-Weiss model, {num_spins} spins, J = {coupling:g}"
    return Problem(
        f"curie_weiss_{num_spins}", target=target, summary=summary, reference="Friedli & Velenik (2017)", log_z=log_z,
        truth=truth,
    )  # fmt: skip
