"""A neural network whose weights are +1 and -1

Binary weights need one bit each, but gradient descent cannot train them. Sampling can: the weights are bits, and
the posterior says which settings explain the data. Here a network with one hidden layer of ten units separates
scikit-learn's two moons; its 41 weights are +1 or -1, at most 2^41 networks.

Hidden units may be exchanged, and so may the signs before and after a unit, so that the posterior has a great
number of equal modes. The prediction does not care which of them a draw is in.

Such a network is coarse: a hidden unit with weights +1 and -1 can look along a diagonal only. It gets most points
right, and the averaged prediction is unsure where the moons bend around each other.

Figure: The two moons as dots in two colours; the background is the probability of the second moon, averaged over
draws, with a wide, soft border across the moons.
"""

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import make_moons

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

x, label = make_moons(120, noise=0.15, random_state=0)
x = (x - x.mean(axis=0)) / x.std(axis=0)
inputs = jnp.asarray(np.concatenate([x, np.ones((len(x), 1))], axis=1))
sign = jnp.asarray(2.0 * label - 1.0)


def output(theta, inputs):
    w = 2.0 * theta - 1.0
    hidden = jnp.tanh(1.5 * inputs @ w[:30].reshape(3, 10))
    return 1.5 * (hidden @ w[30:40] + w[40])


def log_prob(theta):
    return -jnp.sum(jnp.logaddexp(0.0, -sign * output(theta, inputs)))


result = tz.sample(log_prob, tz.binary(41), seed=0, max_seconds=90)
print(result.verdict)
print("moves:", result.choice)


def predict(points):
    points = jnp.asarray(np.concatenate([points, np.ones((len(points), 1))], axis=1))
    draws = result["theta"].reshape(-1, 41)[:: result.num_chains * result.num_draws // 200]
    return np.mean([1 / (1 + np.exp(-np.asarray(output(jnp.asarray(draw), points)))) for draw in draws], axis=0)


fresh, truth = make_moons(1000, noise=0.15, random_state=1)
old = make_moons(120, noise=0.15, random_state=0)[0]
fresh = (fresh - old.mean(axis=0)) / old.std(axis=0)
print(f"right on 1,000 new points: {100 * np.mean((predict(fresh) > 0.5) == truth):.1f} %")

with themed():
    figure = new_figure(5.5, 3.4)
    axis = figure.subplots()
    a, b = np.meshgrid(np.linspace(-2.3, 2.3, 80), np.linspace(-2.3, 2.3, 60))
    chance = predict(np.stack([a.ravel(), b.ravel()], axis=1)).reshape(a.shape)
    picture = axis.pcolormesh(a, b, chance, vmin=0, vmax=1, rasterized=True)
    for k, mark in enumerate("os"):
        axis.plot(*x[label == k].T, mark, color="#d55e00" if k else "white", markeredgecolor="black", markersize=5)
    axis.set(xticks=[], yticks=[])
    figure.colorbar(picture, label="P(second moon)")
    figure.savefig("binary_network.png", dpi=90)
