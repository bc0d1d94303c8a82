"""Bayesian variable selection: which columns belong in a linear regression, all coefficients integrated out.

    y | beta, theta, s2 ~ N(X_theta beta, s2 I),  beta | s2 ~ N(0, nu2 s2 I),  s2 ~ InvGamma(w / 2, lambda w / 2)

    log pi(theta) = -log |C| - |theta| log nu - (w + n) / 2 log(w lambda / n + (y'y - |C^-1 X_theta'y|^2) / n),

with C the Cholesky factor of X_theta'X_theta + I / nu2, |C| the product of its diagonal; nu2 = 10 / lambda, w = 4 and
lambda the residual variance of the full least-squares fit. The setting is that of George & McCulloch (1997) as used by
Schaefer & Chopin (2013) and by the paper. On noise-free data (the paper's) lambda would be nothing but rounding error;
residuals are therefore floored at 1e-12 y'y, which defines the posterior there.

Two nearly equal numbers are subtracted in the last term. In float32 that is wrong by up to thousands of nats on
noise-free data (docs/theory.md, trap 6), so these targets insist on float64.

Whether one more column comes in, or goes, follows from the swept matrix S of X'X + I / nu2 beside X'y: with pivot S_ii
and slope s_i the residual y'y - ... changes by -s_i^2 / S_ii and log |C| by log |S_ii| / 2, in both directions
(Goodnight 1979, A tutorial on the sweep operator). Making the change is a sweep on i: d^2 operations instead of d^3.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError, UnsupportedError, arguments
from terrazzo.problems.base import Problem
from terrazzo.spaces import binary
from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.target import Target

LEAST_RESIDUAL = 1e-12  # of y'y: what cancellation leaves of a perfect fit


class Swept(NamedTuple):
    """What is known of a set of columns, with A = X_in'X_in + I / nu2.

    Attributes:
        matrix: -A^-1 (in, in), A^-1 X_in'X_out (in, out), and what X_in leaves of X_out'X_out + I / nu2 (out, out).
        slopes: A^-1 X_in'y (in), and what X_in leaves of X_out'y (out).
        left: What X_in leaves of y'y.
    """

    matrix: Float[Array, "dim dim"]
    slopes: Float[Array, " dim"]
    left: Float[Array, ""]


class Selection(AbstractRunningConditionals):
    """The log marginal likelihood of a set of columns, and of all sets that differ from it by one.

    Columns that are left out are replaced by unit vectors orthogonal to everything, which adds nothing to the
    determinant; so the shapes do not depend on theta, and theta may be real.
    """

    gram: Float[Array, "dim dim"]
    correlations: Float[Array, " dim"]
    square: Float[Array, ""]
    residual_variance: Float[Array, ""]
    num_rows: int = eqx.field(static=True)
    prior_weight: float = eqx.field(static=True)

    def __call__(self, theta: Any) -> Float[Array, ""]:
        is_in = theta.astype(self.gram.dtype)
        factor = self._factor(is_in)
        projected = jax.scipy.linalg.solve_triangular(factor, self.correlations * is_in, lower=True)
        left = self.square - jnp.dot(projected, projected)
        log_determinant = jnp.sum(jnp.log(jnp.diagonal(factor)))
        return -log_determinant - jnp.sum(is_in) * self._log_nu() + self._log_fit(left)

    def _ridged(self) -> Float[Array, "dim dim"]:
        return self.gram + jnp.diag(jnp.full(self.gram.shape[0], self.residual_variance / 10.0))

    def _factor(self, is_in: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        return jnp.linalg.cholesky(self._ridged() * is_in[:, None] * is_in[None, :] + jnp.diag(1.0 - is_in))

    def _log_nu(self) -> Float[Array, ""]:
        return 0.5 * jnp.log(10.0 / self.residual_variance)

    def _log_fit(self, left: Float[Array, "..."]) -> Float[Array, "..."]:
        """The term of log pi that the residual y'y - ... decides."""
        n, w = self.num_rows, self.prior_weight
        left = jnp.maximum(left, LEAST_RESIDUAL * self.square)
        return -(w + n) / 2 * jnp.log(w * self.residual_variance / n + left / n)

    # ---- one column more or less

    def start(self, theta: Int[Array, " dim"]) -> Swept:
        """The swept matrix, by a Cholesky factor."""
        is_in = theta == 1
        kept, ridged = is_in.astype(self.gram.dtype), self._ridged()
        inside = kept[:, None] * ridged
        asked = jnp.where(is_in[None, :], -jnp.eye(len(kept), dtype=ridged.dtype), inside)
        asked = jnp.concatenate([asked, (kept * self.correlations)[:, None]], axis=1)
        solved = jax.scipy.linalg.cho_solve((self._factor(kept), True), asked)
        solved, coefficients = solved[:, :-1], solved[:, -1]
        outside = jnp.where(is_in[None, :], solved.T, ridged - inside.T @ solved)
        slopes = jnp.where(is_in, coefficients, self.correlations - inside.T @ coefficients)
        left = self.square - jnp.dot(coefficients, kept * self.correlations)
        return Swept(jnp.where(is_in[:, None], solved, outside), slopes, left)

    def logits(self, tables: Swept, theta: Int[Array, " dim"]) -> Float[Array, "dim 2"]:
        """0 for a column as it is, and what log pi gains by the change."""
        pivots = jnp.diagonal(tables.matrix)
        log_nu = jnp.where(theta == 1, -self._log_nu(), self._log_nu())
        fit = self._log_fit(tables.left - tables.slopes**2 / pivots) - self._log_fit(tables.left)
        gain = fit - 0.5 * jnp.log(jnp.abs(pivots)) - log_nu
        return jnp.where(theta[:, None] == jnp.arange(2, dtype=theta.dtype), 0.0, gain[:, None])

    def moved(self, tables: Swept, theta: Int[Array, " dim"], i: Int[Array, ""], value: Int[Array, ""]) -> Swept:
        """A sweep on column i: forwards if it comes in, backwards if it goes."""
        is_i = jnp.arange(theta.shape[0], dtype=i.dtype) == i
        pivot, slope, column = tables.matrix[i, i], tables.slopes[i], tables.matrix[:, i]
        scaled, sign = column / pivot, jnp.where(value == 1, 1.0, -1.0)
        line = jnp.where(is_i, -1.0 / pivot, sign * scaled)
        others = tables.matrix - scaled[:, None] * column[None, :]
        matrix = jnp.where(is_i[:, None], line[None, :], jnp.where(is_i[None, :], line[:, None], others))
        slopes = jnp.where(is_i, sign * slope / pivot, tables.slopes - scaled * slope)
        return Swept(matrix, slopes, tables.left - slope**2 / pivot)


def selection_target(features: Any, responses: Any, *, prior_weight: float = 4.0) -> Target:
    """Variable selection for given data.

    Args:
        features: X, shape (row, column), more rows than columns.
        responses: y.
        prior_weight: w.

    Returns:
        The target on {0, 1}^columns.
    """
    x = arguments.array("features", features, 2, "rows of numbers")
    y = arguments.array("responses", responses, 1, "one number a row")
    prior_weight = arguments.number("prior_weight", prior_weight)
    if x.ndim != 2 or y.shape != (x.shape[0],) or x.shape[0] <= x.shape[1]:
        raise OptionError("features", f"have shape {x.shape} for {y.shape} responses", "more rows than columns")
    if jnp.result_type(float) != jnp.float64:
        raise UnsupportedError(
            "precision",
            "must be float64: variable selection subtracts nearly equal numbers",
            "jax.config.update('jax_enable_x64', True) first",
        )
    coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
    residual = float(np.sum((y - x @ coefficients) ** 2))
    variance = max(residual, LEAST_RESIDUAL * float(y @ y)) / (x.shape[0] - x.shape[1])
    fn = Selection(
        gram=jnp.asarray(x.T @ x), correlations=jnp.asarray(x.T @ y), square=jnp.asarray(y @ y),
        residual_variance=jnp.asarray(variance), num_rows=len(y), prior_weight=prior_weight,
    )  # fmt: skip
    return Target(fn, binary(x.shape[1], dims=("feature",)), running_conditionals=fn)


def variable_selection(
    num_features: int = 100,
    num_informative: int = 10,
    *,
    noise: float = 0.0,
    num_rows: int | None = None,
    seed: int = 0,
) -> Problem:
    """Variable selection on synthetic data: Gaussian columns, coefficients uniform on (0, 100) for a few of them.

    Args:
        num_features: Columns; the paper has 100, 200 and 400.
        num_informative: Columns with a coefficient; the paper has a tenth of all.
        noise: The sd of the noise. 0 is the paper's setting; 100 or more leaves real doubt about the small ones.
        num_rows: Rows; twice the columns by default.
        seed: Decides the data, which are drawn once.

    Returns:
        The problem; `truth` holds `support`, the informative columns as zeros and ones, `coefficients`, and the data.

    Reference: George & McCulloch (1997); Schaefer & Chopin (2013); Jaini et al. (2021), section 5.

    >>> with jax.enable_x64(True):
    ...     problem = variable_selection(8, 3, noise=50.0)
    >>> int(problem.truth["support"].sum())
    3
    """
    num_features = arguments.count("num_features", num_features, high=2**16)
    num_informative = arguments.count("num_informative", num_informative, low=0)
    if num_informative > num_features:
        raise OptionError("num_informative", f"is {num_informative} of {num_features}", "at most num_features")
    noise = arguments.number("noise", noise, above=-1e-300)
    num_rows = arguments.optional_count("num_rows", num_rows, high=2**24)
    rng = np.random.default_rng(arguments.seed_number(seed))
    num_rows = 2 * num_features if num_rows is None else num_rows
    features = rng.normal(size=(num_rows, num_features))
    coefficients = np.zeros(num_features)
    chosen = rng.permutation(num_features)[:num_informative]
    coefficients[chosen] = 100 * rng.uniform(size=num_informative)
    responses = features @ coefficients + noise * rng.normal(size=num_rows)
    truth = {
        "support": (coefficients != 0).astype(np.int32),
        "coefficients": coefficients,
        "features": features,
        "responses": responses,
    }
    target = selection_target(features, responses)
    summary = f"Bayesian variable selection, {num_informative} of {num_features} columns, noise {noise:g}"
    return Problem(
        f"selection_{num_features}", target=target, summary=summary, reference="Schaefer & Chopin (2013)", log_z=None,
        truth=truth,
    )  # fmt: skip
