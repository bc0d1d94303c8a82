"""When was the American economy in recession?

Growth of the real GNP of the United States in per cent a quarter, 1951 to 1984 (the series of Hamilton, 1989,
rounded). In his model growth depends on that of the quarter before and on a hidden state, recession (0) or growth
(1), which tends to stay as it is: a Markov-switching autoregression. Six real unknowns (two levels, the dependence,
the noise, two probabilities of staying) and one hidden state for each of 134 quarters.

The log-probability is a plain function. Neighbouring states are tied by one sum over pairs, from which Terrazzo
reads that they form a chain, and sums them out as the forward algorithm does. A reference, here a plain prior that
draws the states by a fair coin, lets tempered ladders check the answer independently.

The dates that the NBER calls recessions were not given to the model.

Figure: Above, growth a quarter as a line. Below, the posterior probability of recession, which rises to between 0.5
and 0.9 in each of the seven shaded spans that the NBER calls recessions, and is lower in most other quarters.
"""

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

growth = np.array([
    259, 220, 46, 97, -24, 90, 205, 173, 94, -46, -81, -140, -40, 119, 146, 212, 109, 132, 87, -20, 45, 7,
    110, 82, -6, 58, -156, -205, 54, 234, 234, 123, 189, -46, 85, 170, -29, 10, -86, 103, 124, 142, 222, 130,
    104, 93, -17, 134, 138, 173, 72, 221, 85, 100, 43, 214, 144, 158, 227, 196, 26, 102, 49, 56, 60, 143, 56,
    115, 169, 77, -10, 140, 14, 55, -40, -62, -9, 121, -91, 265, -1, 51, 0, 217, 193, 104, 186, 232, 26, -10,
    89, -56, 28, -131, -88, -197, 101, 168, 138, 186, 44, 41, 99, 136, 160, 199, -26, 88, 311, 85, 123, 0, -9,
    90, -19, 100, -239, 7, 126, 192, -33, 44, -141, -152, 30, -80, 15, 99, 213, 134, 162, 271, 124, 51, 15,
]) / 100.0  # fmt: skip
nber = [(9, 13), (26, 28), (36, 40), (75, 79), (91, 96), (115, 117), (121, 127)]  # first quarter, one after the last
before, now = growth[:-1], growth[1:]
quarters = 1951.25 + 0.25 * np.arange(len(growth))


def normal(x, mean, sd):
    return jnp.sum(-0.5 * jnp.square((x - mean) / sd) - jnp.log(sd * jnp.sqrt(2 * jnp.pi)))


def prior(v):
    """Levels about -0.5 and 1, log-normal noise, states that stay with probability 0.8 or so: Beta(8, 2)."""
    levels = normal(v["level"], jnp.array([-0.5, 1.0]), 0.5) + normal(v["memory"], 0.0, 0.3)
    noise = normal(jnp.log(v["noise"]), 0.0, 0.5) - jnp.log(v["noise"])
    return levels + noise + jnp.sum(7 * jnp.log(v["stay"]) + jnp.log1p(-v["stay"]) + jnp.log(72.0))


def log_prob(v):
    state, stay = v["state"], v["stay"]
    move = jnp.log(jnp.stack([jnp.array([stay[0], 1 - stay[0]]), jnp.array([1 - stay[1], stay[1]])]))
    seen = normal(now, v["level"][state] + v["memory"] * before, v["noise"])
    return prior(v) + jnp.sum(move[state[:-1], state[1:]]) + seen


def draw(key):
    a, b, c, d, e = jax.random.split(key, 5)
    return {
        "level": jnp.array([-0.5, 1.0]) + 0.5 * jax.random.normal(a, (2,)), "memory": 0.3 * jax.random.normal(b),
        "noise": jnp.exp(0.5 * jax.random.normal(c)), "stay": jax.random.beta(d, 8.0, 2.0, (2,)),
        "state": jax.random.bernoulli(e, 0.5, now.shape).astype(int),
    }  # fmt: skip


space = tz.Space(
    level=tz.real(2), memory=tz.real(), noise=tz.real(low=0.0), stay=tz.real(0.0, 1.0, shape=2),
    state=tz.binary(len(now)),
)  # fmt: skip
coin = tz.Reference(lambda v: prior(v) + len(now) * jnp.log(0.5), draw)
result = tz.sample(tz.Target(log_prob, space, reference=coin), seed=0)
print(result.verdict)
print(result.choice)
for name in ("level", "memory", "noise", "stay"):
    print(f"{name:<7}", np.round(result[name].mean(axis=(0, 1)), 2))
chance = np.mean(result["state"] == 0, axis=(0, 1))
called = np.array([any(first <= t < end for first, end in nber) for t in range(1, len(growth))])
print(f"P(recession): {chance[called].mean():.2f} in the NBER's recessions, {chance[~called].mean():.2f} elsewhere")

with themed():
    figure = new_figure(7.5, 3.8)
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.plot(quarters, growth, linewidth=1)
    top.set(ylabel="growth (%)")
    bottom.plot(quarters[1:], chance)
    bottom.set(ylabel="P(recession)", ylim=(0, 1))
    for first, end in nber:
        bottom.axvspan(1951.25 + 0.25 * first, 1951.25 + 0.25 * end, color="#c9ced6")
    figure.savefig("recessions.png", dpi=90)
