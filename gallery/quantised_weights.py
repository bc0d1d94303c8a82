"""A classifier with 4-bit weights

Weights of four bits are cheap to store and to multiply. Which of the 16^15 settings of a classifier of Fisher's
irises are good? The model is logistic regression with three classes: 15 weights, each one of 16 values between -2
and 2. The posterior holds all settings that explain the training flowers, with their weights.

Averaging over draws gives probabilities that know what the data leave open; the single best setting is found by
`tz.maximize`. On flowers that were kept apart both are right equally often. The log score prefers the best setting
here: its weights are as large as the grid allows, and most other settings in the posterior are more cautious.

Figure: Petal length and width of the flowers; the background is coloured by how sure the averaged classifier is,
and it is unsure along the border between two species.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed
from terrazzo.report import theme

iris = load_iris()
x = (iris.data - iris.data.mean(axis=0)) / iris.data.std(axis=0)
x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
train, test, labels, held_out = train_test_split(x, iris.target, test_size=0.4, random_state=0, stratify=iris.target)


def scores(theta, inputs):
    weights = (theta.reshape(*theta.shape[:-1], 5, 3) - 7.5) * (2.0 / 7.5)
    return jax.nn.log_softmax(jnp.asarray(inputs) @ weights)


def log_prob(theta):
    return jnp.sum(scores(theta, train)[jnp.arange(len(train)), labels])


space = tz.integers(0, 15, shape=15)
result = tz.sample(log_prob, space, seed=0, max_seconds=60)
best = tz.maximize(log_prob, space, seed=0, num_rounds=500)
print(result.verdict)
print("moves:", result.choice)

draws = jnp.asarray(result["theta"].reshape(-1, 15)[::10])
for name, probability in {
    "averaged over draws": jnp.mean(jnp.exp(scores(draws, test)), axis=0),
    "the best setting": jnp.exp(scores(jnp.asarray(best.flat), test)),
}.items():
    right = np.mean(np.asarray(probability).argmax(axis=1) == held_out)
    log_score = np.mean(np.log(np.asarray(probability)[np.arange(len(test)), held_out]))
    print(f"{name}: {100 * right:.1f} % of {len(test)} flowers right, mean log score {log_score:.3f}")

with themed():
    figure = new_figure(6.0, 3.4)
    axis = figure.subplots()
    a, b = np.meshgrid(np.linspace(-1.8, 2.0, 120), np.linspace(-1.8, 2.0, 90))
    grid = np.stack([0 * a.ravel(), 0 * a.ravel(), a.ravel(), b.ravel(), 1 + 0 * a.ravel()], axis=1)
    sure = np.mean(np.exp(scores(draws[::8], grid)), axis=0).max(axis=1)
    picture = axis.pcolormesh(a, b, sure.reshape(a.shape), cmap="Greys_r", vmin=0.34, vmax=1, rasterized=True)
    for k, name in enumerate(iris.target_names):
        petals = x[iris.target == k, 2:4].T
        axis.plot(*petals, "os^"[k], color=theme.LINES[k], label=name, markersize=5)
    axis.set(xlabel="petal length (standardised)", ylabel="petal width (standardised)")
    axis.legend(loc="lower right")
    figure.colorbar(picture, label="how sure")
    figure.savefig("quantised_weights.png", dpi=90)
