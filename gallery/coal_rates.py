"""A change of rate in coal mining, as PyMC users write it

The disasters in British coal mines, 1851 to 1962, again (Jarrett, 1979), with one change: an unknown rate before it,
an unknown rate after it, and the year in between. PyMC's own introduction has this model: two reals and an integer,
which PyMC moves in turns, the reals by NUTS and the year by Metropolis.

Here the PyMC model is handed over as it is. The year is summed out at every pair of rates, NUTS moves the rates on
the sum, and the year is drawn exactly given them. With Exponential priors the rates can be integrated out by hand,
so that the right answer is known.

Figure: Left, bars of the disasters a year with the posterior mean of the rate, which falls between 1885 and 1895.
Right, the posterior probability of each year as bars, with the exact probabilities as dots on them.
"""

import numpy as np
import pymc as pm
from scipy.special import gammaln, softmax

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

disasters = tz.problems.coal_disasters()  # one number a year, 1851 to 1962
n = len(disasters)

with pm.Model() as coal:
    early = pm.Exponential("early", 1.0)
    late = pm.Exponential("late", 1.0)
    change = pm.DiscreteUniform("change", 1, n - 1)
    pm.Poisson("disasters", pm.math.switch(np.arange(n) < change, early, late), observed=disasters)

result = tz.sample(tz.from_pymc(coal), seed=0)
print(result.verdict)
print(result.choice)
print(result.summary()[["mean", "sd", "mcse", "ess_bulk", "r_hat"]].round(3))

years = np.arange(1, n)  # by hand: Gamma integrals of both rates
before = np.cumsum(disasters)[:-1]
after = disasters.sum() - before
log_first = gammaln(before + 1) - (before + 1) * np.log(years + 1)
exact = softmax(log_first + gammaln(after + 1) - (after + 1) * np.log(n - years + 1))
print(f"mean of the first rate: {result['early'].mean():.3f}, exactly {exact @ ((before + 1) / (years + 1)):.3f}")
print(f"mean of the last rate:  {result['late'].mean():.3f}, exactly {exact @ ((after + 1) / (n - years + 1)):.3f}")

change, calendar = result["change"].ravel(), 1851 + np.arange(n)
rate = [np.where(change > t, result["early"].ravel(), result["late"].ravel()).mean() for t in range(n)]
with themed():
    figure = new_figure(7.5, 3.0)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.bar(calendar, disasters, color="#c9ced6")
    left.plot(calendar, rate, linewidth=2)
    left.set(xlabel="year", ylabel="disasters")
    right.bar(1851 + years, np.bincount(change, minlength=n)[1:] / len(change), color="#c9ced6", label="draws")
    right.plot(1851 + years, exact, ".", label="exact")
    right.set(xlabel="first year of the lower rate", ylabel="probability", xlim=(1880.5, 1900.5))
    right.legend()
    figure.savefig("coal_rates.png", dpi=90)
