"""Two lines in one cloud of points, and a small second mode

Forty points lie about one of two lines through the origin, nobody knows which (simulated data: slopes -1 and 1.2).
Unknown are two slopes, the share of points on the second line, and the line of each point: three reals and forty
binary variables.

The prior says that the first slope is about -1 and the second about 1, each with a standard deviation of 1. Exchanging
the lines is therefore less probable, but not impossible: the integral over a grid of the three reals, with the labels
summed out, gives the exchanged lines 1.4 % of the posterior. No change of a single variable leads from one to the
other.

The default explores by tempering from a reference, finds both modes, and learns a transport whose jumps go from one to
the other. By hand there is no prior to start from, so the reference is fitted to short chains, and the verdict says
that nothing independent was compared.

Figure: Left, the points, coloured by how probable the second line is, with both lines. Right, the draws of the two
slopes: a large cloud, and a small one where they are exchanged.
"""

import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

rng, n = np.random.default_rng(7), 40
x = rng.uniform(-2, 2, n)
y = np.where(rng.random(n) < 0.4, -1.0 * x, 1.2 * x) + 0.7 * rng.normal(size=n)


def log_prob(v):
    share, slope, line = v["share"], v["slope"], v["line"]
    prior = jnp.log(share) + jnp.log1p(-share) - 0.5 * jnp.sum((slope - jnp.array([-1.0, 1.0])) ** 2)
    labels = jnp.where(line == 1, jnp.log(share), jnp.log1p(-share)).sum()
    return prior + labels - 0.5 * jnp.sum(((y - slope[line] * x) / 0.7) ** 2)


space = tz.Space(share=tz.real(0.0, 1.0), slope=tz.real(2), line=tz.binary(n))
result = tz.sample(log_prob, space, seed=0)
print(result.verdict)
print(result.choice)
slope = result["slope"].reshape(-1, 2)
print(f"mean slopes: {slope[:, 0].mean():.3f} and {slope[:, 1].mean():.3f} (by a grid: -1.053 and 1.045)")
print(f"the lines are exchanged in {100 * (slope[:, 0] > slope[:, 1]).mean():.1f} % of the draws (by a grid: 1.4 %)")

with themed():
    figure = new_figure(7.5, 3.0)
    left, right = figure.subplots(1, 2)
    dots = left.scatter(x, y, c=result["line"].mean(axis=(0, 1)), s=18, vmin=0, vmax=1)
    for value in np.median(slope, axis=0):
        left.plot([-2, 2], [-2 * value, 2 * value], linewidth=1)
    left.set(xlabel="x", ylabel="y")
    figure.colorbar(dots, label="P(second line)")
    right.plot(*slope[::2].T, ".", markersize=2, alpha=0.4)
    right.set(xlabel="first slope", ylabel="second slope")
    figure.savefig("two_lines.png", dpi=90)
