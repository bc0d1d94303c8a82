"""At how many ponds do frogs live that nobody heard?

Forty ponds were visited four times each, and at each visit somebody noted whether frogs were heard (simulated data:
they lived at 60 % of the ponds, and were heard at 35 % of the visits there). A pond without a note may be empty, or
its frogs were silent four times. The model of MacKenzie et al. (2002) has two real unknowns, the share of ponds with
frogs and the probability to hear them, and forty binary ones: is there a frog?

It is a NumPyro model, handed over as it is. NUTS alone cannot move the binary sites. Here they are read from the
model, summed out at every value of the reals, and drawn exactly afterwards: nothing is marginalised by hand. Ponds
where frogs were heard are certain.

Figure: Left, the draws of both real unknowns as a cloud: rarer frogs that are easily heard explain the notes as well
as common ones that are not. Right, the posterior of the number of ponds with frogs, and where frogs were heard.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

rng, num_ponds, num_visits = np.random.default_rng(4), 40, 4
heard = rng.binomial(num_visits, 0.35 * (rng.random(num_ponds) < 0.6))


def ponds(heard):
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    hearing = numpyro.sample("hearing", dist.Beta(1.0, 1.0))
    with numpyro.plate("pond", num_ponds):
        frogs = numpyro.sample("frogs", dist.Bernoulli(share))
        numpyro.sample("heard", dist.Binomial(num_visits, frogs * hearing), obs=heard)


result = tz.sample(tz.from_numpyro(ponds, heard), seed=0)
print(result.verdict)
print(result.choice)
number = result["frogs"].sum(axis=-1).ravel()
print(f"frogs were heard at {(heard > 0).sum()} ponds, and live at {number.mean():.1f} of {num_ponds}")
print(f"90 % between {np.quantile(number, 0.05):.0f} and {np.quantile(number, 0.95):.0f}")
silent = result["frogs"][..., heard == 0].mean()
print(f"a pond without a note has frogs with probability {silent:.2f}")

with themed():
    figure = new_figure(7.5, 3.0)
    left, right = figure.subplots(1, 2)
    left.plot(result["share"].ravel()[::4], result["hearing"].ravel()[::4], ".", markersize=2, alpha=0.4)
    left.set(xlabel="share of ponds with frogs", ylabel="probability to hear them")
    right.bar(np.arange(num_ponds + 1), np.bincount(number, minlength=num_ponds + 1) / len(number))
    right.axvline((heard > 0).sum(), linestyle="--")
    right.set(xlabel="ponds with frogs", ylabel="probability", title="dashed: where frogs were heard")
    figure.savefig("occupancy.png", dpi=90)
