"""When did coal mining become safer?

The numbers of coal-mining disasters in Britain, year by year from 1851 to 1962 (Jarrett, 1979), fall at some time
before 1900. The model has two unknown integers: the first year of a second rate, and of a third. Given them, the
three Poisson rates have Gamma(2, 1) priors and are integrated out, so that log pi is a function of integers alone.

There are 12,321 pairs of years. Terrazzo evaluates all of them: the answer is exact. Pairs in the wrong order are
impossible: log pi is -inf there.

Figure: Bars of the number of disasters per year, the posterior mean of the rate as a line, and below it the
posterior probability of each year to be the first or the second change point.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

disasters = tz.problems.coal_disasters()  # one number a year, 1851 to 1962
num_years, total = len(disasters), jnp.asarray(np.concatenate([[0], np.cumsum(disasters)]))


def segment(first, last):
    """The log-probability of the years first..last-1 with one rate, integrated over its Gamma(2, 1) prior."""
    events, years = total[last] - total[first], last - first
    return gammaln(events + 2.0) - (events + 2.0) * jnp.log(years + 1.0)


def log_prob(change):
    first, second = change[0], change[1]
    value = segment(0, first) + segment(first, second) + segment(second, num_years)
    return jnp.where(first < second, value, -jnp.inf)


result = tz.sample(log_prob, tz.integers(1, num_years - 1, shape=2), seed=0)
change = result["theta"].reshape(-1, 2)
print(result.verdict)
for name, years in zip(("first", "second"), 1851 + change.T, strict=True):
    low, middle, high = np.percentile(years, [5, 50, 95]).astype(int)
    print(f"{name} change: {middle} (90 % between {low} and {high})")

rate = np.zeros(num_years)
for first, second in change[::8]:
    for a, b in ((0, first), (first, second), (second, num_years)):
        rate[a:b] += (disasters[a:b].sum() + 2) / (b - a + 1)
with themed():
    figure, years = new_figure(7.5, 3.8), 1851 + np.arange(num_years)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    top.bar(years, disasters, color="#c9ced6")
    top.plot(years, rate / len(change[::8]), linewidth=2)
    top.set(ylabel="disasters", title="Disasters per year and the posterior mean of the rate")
    for i, name in enumerate(("first", "second")):
        bottom.plot(years, np.bincount(change[:, i], minlength=num_years) / len(change), label=name)
    bottom.legend(title="change")
    bottom.set(ylabel="probability")
    figure.savefig("coal_mining.png", dpi=90)
