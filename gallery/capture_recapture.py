"""How many hares? Capture and recapture

Snowshoe hares were trapped on six nights (Cormack, 1989): 68 different animals, of which 25 were caught once, 22
twice, 13 three times, 5 four times, 1 five times and 2 six times. How many hares are there?

If all hares are equally easy to catch, the answer is simple. They are not: two were caught every night. Here each
hare has its own probability of being caught, from a Beta law. The unknowns are three integers: the number of hares
N, and the mean and the spread of that law on grids. Those never caught count with probability P(0) each:

    log pi(N, ...) = log N! / (N - 68)! + (N - 68) log P(0) + sum_k f_k log P(k) - log N

Figure: The posterior probability of the number of hares under equal and under different catchability; the second is
wider and lies further to the right.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, gammaln

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

caught = np.array([25, 22, 13, 5, 1, 2])  # hares caught once, twice, ..., six times
seen, nights = caught.sum(), np.arange(7)
log_choose = gammaln(7.0) - gammaln(nights + 1.0) - gammaln(7.0 - nights)


def log_prob(v, is_equal=False):
    mean = v["mean"] / 51.0
    if is_equal:
        log_p = log_choose + nights * jnp.log(mean) + (6 - nights) * jnp.log1p(-mean)
    else:
        size = jnp.exp(v["spread"] * 0.25 - 1.0)  # a + b of the Beta law, from 0.37 to 150
        a, b = mean * size, (1 - mean) * size
        log_p = log_choose + betaln(a + nights, b + 6 - nights) - betaln(a, b)
    hares = v["hares"].astype(float)
    combinations = gammaln(hares + 1) - gammaln(hares - seen + 1)
    return combinations + (hares - seen) * log_p[0] + jnp.sum(caught * log_p[1:]) - jnp.log(hares)


hares, mean = tz.integers(68, 400), tz.integers(1, 50)
equal = tz.sample(lambda v: log_prob(v, is_equal=True), tz.Space(hares=hares, mean=mean), seed=0)
different = tz.sample(log_prob, tz.Space(hares=hares, mean=mean, spread=tz.integers(0, 24)), seed=0)

runs = {"equally easy to catch": equal, "each its own": different}
for name, result in runs.items():
    low, middle, high = np.percentile(result["hares"], [5, 50, 95]).astype(int)
    log_z = result.log_z - np.log(50 if result is equal else 50 * 25)  # uniform priors on the grids
    print(f"{name}: {middle} hares (90 % between {low} and {high}), log Z {log_z:.2f}")
    print("   ", result.verdict)

with themed():
    figure = new_figure(6.5, 3.0)
    axis = figure.subplots()
    for name, result in runs.items():
        axis.plot(np.bincount(result["hares"].ravel(), minlength=401) / result["hares"].size, label=name)
    axis.set(xlim=(60, 250), xlabel="hares", ylabel="posterior probability")
    axis.legend()
    figure.savefig("capture_recapture.png", dpi=90)
