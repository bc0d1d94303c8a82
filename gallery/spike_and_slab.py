"""Spike and slab: which measurements matter, and how much?

Ten measurements of 442 patients and the progress of their diabetes a year later (Efron et al., 2004; shipped with
scikit-learn). Each coefficient of the regression is either exactly zero (the spike) or a real number of unknown size
(the slab). A bit for each column says which: ten bits and twelve reals, with the noise and the width of the slab.

It is a NumPyro model, handed over as it is. A coefficient that is switched off does not touch the data, and follows
its prior until it is switched on again. Six of the ten columns are measurements of the same blood, and several of
them can stand for each other: the posterior has some of them in, in different combinations.

Chains move the bits and the reals in turn, and are compared with tempered ladders that start from the prior. Where
short trials of such chains disagree, as they may, jumps through a learned transport or the ladders make the draws.

Figure: Left, bars of the probability that a coefficient is not zero. Right, for each column the mean of its effect,
zeros included, with an interval that holds 90 % of the draws.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_diabetes

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

data = load_diabetes()
columns = data.data / data.data.std(axis=0)
progress = (data.target - data.target.mean()) / data.target.std()


def regression(columns, progress):
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    slab = numpyro.sample("slab", dist.HalfNormal(0.5))
    with numpyro.plate("column", columns.shape[1]):
        on = numpyro.sample("on", dist.Bernoulli(0.5))
        size = numpyro.sample("size", dist.Normal(0.0, 1.0))
    with numpyro.plate("patient", len(progress)):
        numpyro.sample("progress", dist.Normal(columns @ (on * slab * size), noise), obs=progress)


result = tz.sample(tz.from_numpyro(regression, columns, progress), seed=0, thin=5)
print(result.verdict)
print(result.choice)
effect = (result["on"] * result["slab"][..., None] * result["size"]).reshape(-1, columns.shape[1])
chance = result["on"].mean(axis=(0, 1))
for i in np.argsort(-chance):
    print(f"{data.feature_names[i]:<4} not zero with probability {chance[i]:.3f}, effect {effect[:, i].mean():+.3f}")

with themed():
    figure = new_figure(7.5, 3.2)
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(data.feature_names, chance)
    left.set(xlabel="P(not zero)", xlim=(0, 1))
    for i, name in enumerate(data.feature_names):
        right.plot(np.quantile(effect[:, i], [0.05, 0.95]), [name, name], color="#9aa3af")
        right.plot(effect[:, i].mean(), name, "o", color="#0072b2")
    right.axvline(0.0, linestyle=":", color="#555")
    right.invert_yaxis()
    right.set(xlabel="effect, in standard deviations")
    figure.savefig("spike_and_slab.png", dpi=90)
