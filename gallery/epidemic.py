"""A simulator as a black box: influenza in a boarding school

In 1978 an influenza epidemic ran through an English boarding school of 763 boys (British Medical Journal, 4 March
1978). The numbers in bed on fourteen days are known. The simulator is plain Python: a loop with floats and a list,
which JAX cannot trace, as a program of your own might be. `tz.blackbox` is all it takes.

The unknowns are three integers: the number infected at the start, the contact rate in hundredths per day, and the
length of the illness in tenths of a day. Counts are taken as negative binomial around the simulated number.
Terrazzo evaluates the simulator at all 12,800 settings, in one go.

Figure: Dots for the number of boys in bed on each day, and a band with 90 percent of the simulated epidemics of the
posterior around its median.
"""

import numpy as np
from scipy.stats import nbinom

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

in_bed = np.array([3, 8, 28, 75, 221, 291, 255, 235, 190, 125, 70, 28, 12, 5])


def simulate(infected, contacts, length):
    """The number in bed at noon of each day, in steps of six hours."""
    sick, well, seen = float(infected), 763.0 - infected, []
    for quarter in range(4 * len(in_bed)):
        new = well * (1 - np.exp(-contacts / 100 * sick / 763 / 4))
        recovered = sick * (1 - np.exp(-1 / (length / 10) / 4))
        well, sick = well - new, sick + new - recovered
        if quarter % 4 == 3:
            seen.append(sick)
    return np.array(seen)


def log_prob(v):
    mean = simulate(int(v["infected"]), int(v["contacts"]), int(v["length"]))
    return float(nbinom.logpmf(in_bed, 10, 10 / (10 + mean)).sum())


space = tz.Space(infected=tz.integers(1, 8), contacts=tz.integers(130, 209), length=tz.integers(12, 31))
result = tz.sample(tz.blackbox(log_prob), space, seed=0)
print(result.summary().round(2))
print("verdict:", result.verdict)
reproduction = result["contacts"] / 100 * result["length"] / 10
print(f"basic reproduction number {reproduction.mean():.2f} +- {reproduction.std():.2f}")

picks = np.random.default_rng(0).integers(0, result["infected"].size, 300)
curves = [simulate(*(int(result[name].ravel()[i]) for name in space.names)) for i in picks]
with themed():
    figure, days = new_figure(6.5, 3.2), np.arange(1, 15)
    axis = figure.subplots()
    low, middle, high = np.percentile(curves, [5, 50, 95], axis=0)
    axis.fill_between(days, low, high, alpha=0.25)
    axis.plot(days, middle, label="posterior: median and 90 %")
    axis.plot(days, in_bed, "o", color="#d55e00", label="observed")
    axis.set(xlabel="day", ylabel="boys in bed")
    axis.legend()
    figure.savefig("epidemic.png", dpi=90)
