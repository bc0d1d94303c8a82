"""Sudoku: a search with constraints

Any function of integers can be maximised: here minus the number of pairs of equal digits in a row, column or box of
a Sudoku, whose solution has 0. `tz.condition` fixes the given digits, and `tz.maximize` searches over the free ones
by parallel tempering. The score counts broken rules instead of forbidding them, so that the search can pass through
wrong fillings on its way; 0 proves the solution right, since no score can be higher.

Figure: The solved Sudoku; the digits that were given are dark, those found by the search are blue.
"""

import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

puzzle = """
53..7.... 6..195... .98....6. 8...6...3 4..8.3..1 7...2...6 .6....28. ...419..5 ....8..79
"""
given = np.array([[int(c) if c != "." else 0 for c in row] for row in puzzle.split()])

place = np.arange(81)
row, column = place // 9, place % 9
box = row // 3 * 3 + column // 3
i, j = np.triu_indices(81, 1)
is_tied = (row[i] == row[j]) | (column[i] == column[j]) | (box[i] == box[j])
i, j = i[is_tied], j[is_tied]  # 810 pairs that must differ


def score(digits):
    flat = digits.ravel()
    return -1.0 * jnp.sum(flat[i] == flat[j])


grid = tz.Target(score, tz.categorical(list(range(1, 10)), shape=(9, 9)))
free = tz.condition(grid, np.ma.array(given, mask=given == 0))
best = tz.maximize(free, seed=0, num_rounds=3000, patience=1500, max_seconds=90)

solved = given.copy()
solved[given == 0] = best.theta
print(f"{(given == 0).sum()} free cells, broken rules: {-best.log_prob:.0f}")
print(f"{best.num_evaluations} evaluations, {best.num_rounds} rounds of tempering")
print("\n".join(" ".join(map(str, line)) for line in solved))

with themed():
    figure = new_figure(3.6, 3.6)
    axis = figure.subplots()
    for (y, x), digit in np.ndenumerate(solved):
        colour, weight = ("#1d2430", "bold") if given[y, x] else ("#0072b2", "normal")
        axis.text(x + 0.5, y + 0.5, digit, ha="center", va="center", fontsize=14, color=colour, fontweight=weight)
    for k in range(10):
        axis.axhline(k, color="#1d2430", linewidth=1.8 if k % 3 == 0 else 0.5)
        axis.axvline(k, color="#1d2430", linewidth=1.8 if k % 3 == 0 else 0.5)
    axis.set(xlim=(-0.05, 9.05), ylim=(9.05, -0.05), xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    figure.savefig("sudoku.png", dpi=90)
