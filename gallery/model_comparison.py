"""How many change points? Models compared by their evidence

The coal-mining disasters again: is there one change of the rate, or more, or none? The evidence of a model is the
sum of its joint probability over everything unknown: log Z, if log pi is the whole log-joint with all its
constants.

Each model has k change points with a uniform prior over their positions, and k + 1 Poisson rates with Gamma(2, 1)
priors, which are integrated out. Terrazzo sums up to 1.4 million configurations (k = 3), so that each log Z is
exact and has no standard error. Where it is estimated, `result.log_z_standard_error` says how well, and
`result.log_z_verdict` how far to trust it.

Two or three changes explain the counts better than one, and none is out of the question. These are probabilities
among the four models compared, under these priors: a fourth change was not tried.

Figure: Bars of the posterior probability of 0, 1, 2 and 3 change points.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

disasters = tz.problems.coal_disasters()  # one number a year, 1851 to 1962
num_years, total = len(disasters), jnp.asarray(np.concatenate([[0], np.cumsum(disasters)]))
constant = -float(np.sum(gammaln(disasters + 1.0)))  # the factorials of the Poisson law


def segments(bounds):
    events, years = jnp.diff(total[bounds]), jnp.diff(bounds)
    return jnp.sum(gammaln(events + 2.0) - (events + 2.0) * jnp.log(years + 1.0))  # Gamma(2, 1) has constant 1


def evidence(num_changes):
    if num_changes == 0:
        return float(segments(jnp.array([0, num_years]))) + constant
    prior = -math.log(math.comb(num_years - 1, num_changes))

    def log_prob(change):
        bounds = jnp.concatenate([jnp.array([0]), change, jnp.array([num_years])])
        return jnp.where(jnp.all(jnp.diff(change) > 0), segments(bounds) + prior + constant, -jnp.inf)

    result = tz.sample(log_prob, tz.integers(1, num_years - 1, shape=num_changes), seed=0, draws=100)
    print(f"{num_changes} change points: {result.verdict}")
    return result.log_z


log_z = np.array([evidence(k) for k in range(4)])
probability = np.exp(log_z - log_z.max()) / np.exp(log_z - log_z.max()).sum()
for k in range(4):
    print(f"{k} change points: log Z {log_z[k]:8.3f}, posterior probability {probability[k]:.3f}")

with themed():
    figure = new_figure(5.5, 3.0)
    axis = figure.subplots()
    bars = axis.bar([str(k) for k in range(4)], probability)
    axis.bar_label(bars, [f"{p:.3f}" for p in probability])
    axis.set(xlabel="change points", ylabel="posterior probability", ylim=(0, 1))
    figure.savefig("model_comparison.png", dpi=90)
