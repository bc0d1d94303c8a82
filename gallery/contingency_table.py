"""Are hair and eye colour independent? Tables with fixed margins

Snee (1974) asked 592 students for the colour of their hair and eyes. An exact test of independence compares the
table with all tables that have the same sums of rows and columns, under the law that independence implies:

    pi(table) = 1 / prod_ij n_ij!

Nine integers are free, up to 127 each; the others follow from the sums, and tables with a negative entry are
impossible (-inf). There are 1,225,914,276,768,514 tables (Diaconis and Gangolli, 1995), too many to list. One thing
is known exactly: the mean of chi-square, 9 x 592 / 591 = 9.015, so that this page can compare.

Figure: A histogram of the chi-square statistic over tables drawn under independence, far below a line at the value
of the observed table.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

observed = np.array([[68, 20, 15, 5], [119, 84, 54, 29], [26, 17, 14, 14], [7, 94, 10, 16]])  # hair x eyes
rows, columns, total = observed.sum(axis=1), observed.sum(axis=0), observed.sum()
largest = int(np.minimum(rows[:3, None], columns[:3]).max())
expected = rows[:, None] * columns / total


def whole(corner):
    """The 4 x 4 table of its 3 x 3 corner."""
    last_column = rows[:3] - corner.sum(axis=-1)
    upper = jnp.concatenate([corner, last_column[..., None]], axis=-1)
    return jnp.concatenate([upper, (columns - upper.sum(axis=-2))[..., None, :]], axis=-2)


def log_prob(corner):
    table = whole(corner)
    return jnp.where(jnp.all(table >= 0), -jnp.sum(gammaln(jnp.maximum(table, 0) + 1.0)), -jnp.inf)


space = tz.integers(0, largest, shape=(3, 3))
start = np.floor(expected[:3, :3]).astype(int)
result = tz.sample(log_prob, space, seed=0, init=np.tile(start, (8, 1, 1)), max_seconds=80)
print(result.verdict)
print("moves:", result.choice)

tables = np.asarray(whole(jnp.asarray(result["theta"])))
chi_square = np.sum((tables - expected) ** 2 / expected, axis=(-2, -1)).ravel()
seen = np.sum((observed - expected) ** 2 / expected)
error = chi_square.std() / np.sqrt(tz.diagnostics.ess(chi_square.reshape(result.num_chains, -1)))
print(f"mean of chi-square: {chi_square.mean():.3f} +- {error:.3f}, exactly {9 * total / (total - 1):.3f}")
print(f"observed: {seen:.1f}; the largest of {chi_square.size} draws: {chi_square.max():.1f}")

with themed():
    figure = new_figure(6.5, 2.8)
    axis = figure.subplots()
    axis.hist(chi_square, bins=60, density=True, label="tables under independence")
    axis.axvline(seen, color="#d55e00", label="observed table")
    axis.set(xlabel="chi-square", ylabel="density")
    axis.legend()
    figure.savefig("contingency_table.png", dpi=90)
