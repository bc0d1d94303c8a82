"""How many hares, when each has its own habits?

Snowshoe hares were trapped on six nights (Cormack, 1989): 68 different animals, of which 25 were caught once and 2
every night. Hares differ. Here each has its own tendency to be caught, a real number, and the question is how many
were never caught.

The usual device is data augmentation (Royle and Dorazio, 2008): imagine 200 animals, each of which exists or does
not. The 68 that were caught exist. Unknown are the share that exists, the mean and the spread of the tendency, a
tendency for each animal, and whether it exists: 203 reals and 200 binary variables, 132 of them free. It is a
NumPyro model, handed over as it is.

Another page has [the same hares](capture_recapture.md) with their tendencies integrated out, and integers alone.

Figure: Left, the posterior probability of the number of hares, with the 68 that were caught as a dashed line. Right,
how likely a hare is to be caught in one night, given in how many of six it was caught: dots with intervals that
rise, but less than the share of nights (dotted) does.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

num_nights, num_all = 6, 200
nights = np.repeat([6, 5, 4, 3, 2, 1], [2, 1, 5, 13, 22, 25])
nights = np.concatenate([nights, np.zeros(num_all - len(nights), int)])  # those that were never caught


def hares(nights):
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.5))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("animal", num_all):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
        exists = numpyro.sample("exists", dist.Bernoulli(share))
        caught = exists * jax.nn.sigmoid(mean + spread * own)
        numpyro.sample("nights", dist.Binomial(num_nights, caught), obs=nights)


result = tz.sample(tz.from_numpyro(hares, nights), seed=0)
print(result.verdict)
print(result.choice)
number = result["exists"].sum(axis=-1).ravel()
low, middle, high = np.quantile(number, [0.05, 0.5, 0.95]).astype(int)
print(f"68 hares were caught; {middle} exist (90 % between {low} and {high})")
print(f"spread of the tendency: {result['spread'].mean():.2f} +- {result['spread'].std():.2f}")
chance = jax.nn.sigmoid(result["mean"][..., None] + result["spread"][..., None] * result["own"])

with themed():
    figure = new_figure(7.5, 3.0)
    left, right = figure.subplots(1, 2)
    left.bar(np.arange(num_all + 1), np.bincount(number, minlength=num_all + 1) / len(number), width=1.0)
    left.axvline(68, linestyle="--", color="#555")
    left.set(xlabel="hares", ylabel="posterior probability", xlim=(60, num_all))
    for k in range(1, 7):
        one = np.asarray(chance[..., nights == k][..., 0])
        right.plot([k, k], np.quantile(one, [0.05, 0.95]), color="#9aa3af")
        right.plot(k, one.mean(), "o", color="#0072b2")
    right.plot([1, 6], [1 / 6, 1], ":", color="#555")
    right.set(xlabel="nights on which a hare was caught", ylabel="P(caught in a night)", ylim=(0, 1))
    figure.savefig("hares.png", dpi=90)
