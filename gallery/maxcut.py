"""MaxCut with a proof

Divide the nodes of a graph into two groups so that as many edges as possible go between the groups. The problem is
NP-hard in general, but graphs that are nearly trees are not: Terrazzo reads from the function that each term holds
two nodes, finds an order in which few nodes are tied together at a time, and eliminates them one after the other.
`tz.maximize` then returns a maximum that is proven (`is_proven`).

The graph is a random one in which each of 60 nodes has three edges. The same function, sampled at an inverse
temperature of 3, gives the cuts near the maximum, and exactly how many there are of each size.

Figure: The graph with nodes on a circle in two colours; cut edges are drawn dark, the few others orange. Beside it
the number of cuts by size, on a logarithmic scale.
"""

import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

rng, num_nodes = np.random.default_rng(0), 60
while True:  # pair up three ends of every node until there are no loops and no double edges
    edges = np.sort(rng.permutation(np.repeat(np.arange(num_nodes), 3)).reshape(-1, 2), axis=1)
    if np.all(edges[:, 0] != edges[:, 1]) and len(np.unique(edges, axis=0)) == len(edges):
        break


def cut(side):
    return 1.0 * jnp.sum(side[edges[:, 0]] != side[edges[:, 1]])


print(tz.explain(cut, tz.binary(num_nodes)))
best = tz.maximize(cut, tz.binary(num_nodes), seed=0)
print(f"largest cut: {best.log_prob:.0f} of {len(edges)} edges, proven: {best.is_proven}")

cold = tz.sample(lambda side: 3.0 * cut(side), tz.binary(num_nodes), seed=0)
print(cold.verdict)
sizes = np.rint(cold.log_prob / 3.0).astype(int)
shares = np.bincount(sizes.ravel(), minlength=len(edges) + 1) / sizes.size
log_number = cold.log_z + np.log(np.maximum(shares, 1e-300)) - 3.0 * np.arange(len(shares))
for size in np.flatnonzero(shares > 0.005)[::-1]:
    print(f"cuts of size {size}: about {np.exp(log_number[size]):.3g}")

with themed():
    figure = new_figure(7.5, 3.4)
    left, right = figure.subplots(1, 2)
    angle = 2 * np.pi * np.arange(num_nodes) / num_nodes
    x, y, side = np.cos(angle), np.sin(angle), best.theta
    for a, b in edges:
        is_cut = side[a] != side[b]
        colour, width = ("#5b6675", 0.7) if is_cut else ("#d55e00", 2.0)
        left.plot(x[[a, b]], y[[a, b]], color=colour, linewidth=width, zorder=1 + (not is_cut))
    left.scatter(x, y, c=np.where(side == 1, "#0072b2", "#e8b52c"), s=28, zorder=3)
    left.set_aspect("equal")
    left.set_axis_off()
    shown = np.flatnonzero(shares > 0.005)
    right.semilogy(shown, np.exp(log_number[shown]), "o-")
    right.set(xlabel="size of the cut", ylabel="number of cuts")
    figure.savefig("maxcut.png", dpi=90)
