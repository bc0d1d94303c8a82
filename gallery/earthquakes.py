"""Hidden states of a century of earthquakes

How restless was the earth in each year? The numbers of major earthquakes (magnitude 7 or more) per year, 1900 to
2006, are modelled by a hidden Markov model with three states, each with its own Poisson rate. The states are the
unknown integers, 3^107 sequences of them; rates and transition matrix are those of Zucchini and MacDonald (2009),
who fit them by maximum likelihood.

Each term of log pi ties two neighbouring years. Terrazzo reads this from the function and sums the states out one
after the other, so that draws are independent and log Z is exact. log Z is the log-likelihood of the model: the
book gives -329.46.

Figure: Earthquakes per year as dots, the posterior mean of the rate as a line, and bars below with the probability
of the state with the highest rate in each year.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import poisson

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

counts = np.array([
    13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14, 8, 11, 14, 23,
    18, 17, 19, 20, 22, 19, 13, 26, 13, 14, 22, 24, 21, 22, 26, 21, 23, 24, 27, 41, 31, 27, 35, 26,
    28, 36, 39, 21, 17, 22, 17, 19, 15, 34, 10, 15, 22, 18, 15, 20, 15, 22, 19, 16, 30, 27, 29, 23,
    20, 16, 21, 21, 25, 16, 18, 15, 18, 14, 10, 15, 8, 15, 6, 11, 8, 7, 18, 16, 13, 12, 13, 20, 15,
    16, 12, 18, 15, 16, 13, 15, 16, 11, 11,
])  # fmt: skip
rates = np.array([13.146, 19.721, 29.714])
moves = np.array([[0.955, 0.024, 0.021], [0.050, 0.899, 0.051], [0.000, 0.197, 0.803]])
start = np.linalg.matrix_power(moves, 1000)[0]  # the stationary law
log_moves, log_start = jnp.log(moves), jnp.log(start)  # log 0 is -inf: that move is impossible
seen = jnp.asarray(poisson.logpmf(counts[:, None], rates))  # (year, state)


def log_prob(state):
    steps = jnp.sum(log_moves[state[:-1], state[1:]])
    return log_start[state[0]] + steps + jnp.sum(seen[jnp.arange(len(counts)), state])


result = tz.sample(log_prob, tz.categorical(3, shape=len(counts)), seed=0)
print(result.verdict)
print(f"log-likelihood {result.log_z:.2f} (Zucchini & MacDonald: -329.46)")

years, states = 1900 + np.arange(len(counts)), result["theta"]
restless = (states == 2).mean(axis=(0, 1))
print("years that were restless with probability above 0.9:", *years[restless > 0.9])

with themed():
    figure = new_figure(7.5, 3.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot(years, counts, "o", color="#7a7a7a", markersize=3.5)
    top.plot(years, rates[states].mean(axis=(0, 1)), linewidth=2)
    top.set(ylabel="earthquakes", title="Observed counts and the posterior mean of the rate")
    bottom.bar(years, restless, width=1.0, color="#d55e00")
    bottom.set(ylabel="P(restless)", ylim=(0, 1))
    figure.savefig("earthquakes.png", dpi=90)
