"""Which measurements depend on which? The structure of a Bayesian network

Fisher's irises again, but as a question of structure: four measurements, cut into three classes each, and the
species. Which directed acyclic graph over the five variables explains the 150 flowers? An arrow is a bit, so a
graph is 20 bits. The score of a graph is the BDeu marginal likelihood (Heckerman et al., 1995): a sum of one table
entry per node, which depends on the parents of that node alone. Graphs with a cycle are impossible, and get -inf.

There are 29,281 acyclic graphs among the 1,048,576 settings of the bits. Terrazzo evaluates every setting: the
probability of each arrow is exact. Arrows of equivalent graphs cannot be told apart by data, so many are near one
half.

Figure: A table of the posterior probability of an arrow from the row variable to the column variable.
"""

import itertools

import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln
from sklearn.datasets import load_iris

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

iris = load_iris()
cuts = [np.digitize(column, np.quantile(column, [1 / 3, 2 / 3])) for column in iris.data.T]
data = np.stack([*cuts, iris.target], axis=1)
names, num = ("sepal length", "sepal width", "petal length", "petal width", "species"), 5


def score(node, parents):
    """BDeu with an equivalent sample size of 1, three values a variable."""
    cell = np.zeros(len(data), int)
    for parent in parents:
        cell = 3 * cell + data[:, parent]
    counts = np.zeros((3 ** len(parents), 3))
    np.add.at(counts, (cell, data[:, node]), 1)
    a = 1.0 / counts.size
    rows = gammaln(3 * a) - gammaln(3 * a + counts.sum(axis=1)) + np.sum(gammaln(a + counts) - gammaln(a), axis=1)
    return rows.sum()


table = np.full((num, 2**num), -np.inf)  # by node and set of parents, as bits
for node in range(num):
    others = [i for i in range(num) if i != node]
    for parents in itertools.chain.from_iterable(itertools.combinations(others, k) for k in range(num)):
        table[node, sum(2**p for p in parents)] = score(node, parents)
table, powers = jnp.asarray(table - table.max()), 2 ** jnp.arange(num)
places = np.array([(i, j) for i in range(num) for j in range(num) if i != j])


def log_prob(bits):
    arrows = jnp.zeros((num, num), int).at[places[:, 0], places[:, 1]].set(bits)
    paths = arrows
    for _ in range(3):
        paths = jnp.minimum(paths + paths @ paths, 1)  # paths of up to 2, 4, 8 arrows
    is_acyclic = jnp.trace(paths) == 0
    return jnp.where(is_acyclic, jnp.sum(table[jnp.arange(num), powers @ arrows]), -jnp.inf)


result = tz.sample(log_prob, tz.binary(len(places)), seed=0)
chance = np.zeros((num, num))
chance[places[:, 0], places[:, 1]] = result["theta"].mean(axis=(0, 1))
print(result.verdict)
for i, j in itertools.combinations(range(num), 2):
    either = chance[i, j] + chance[j, i]
    if either > 0.5:
        print(f"{names[i]} and {names[j]}: joined with probability {either:.2f}")

with themed():
    figure = new_figure(5.6, 4.0)
    axis = figure.subplots()
    axis.imshow(chance, vmin=0, vmax=1)
    for (i, j), p in np.ndenumerate(chance):
        axis.text(j, i, f"{p:.2f}" if i != j else "", ha="center", va="center", color="white" if p < 0.6 else "black")
    axis.set_xticks(range(num), names, rotation=25, ha="right")
    axis.set_yticks(range(num), names)
    axis.set_title("P(arrow from row to column)")
    figure.savefig("network_structure.png", dpi=90)
