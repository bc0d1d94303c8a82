"""Who sides with whom? Two blocks in a karate club

Zachary (1977) watched friendships among 34 members of a karate club, which then split in two, around the instructor
(member 1) and the president (member 34). In a stochastic block model everyone is on one of two sides, and there are
more friendships inside a side than between the sides, or fewer. Some members have many friends and some have few, so
that the rates are relative: how many times as many friendships are there as between people who find friends at
random (Karrer and Newman, 2011)? Unknown are both rates and the side of each member: two reals and 33 bits, as
member 1 is on side 0 by definition.

Every pair of members is a term, friends or not, so that the sides cannot be summed out. The reference, from which
tempered ladders start, is the prior.

Who joined whose club afterwards was not given to the model.

Figure: Left, the network, members coloured by the probability of being on the president's side; those who joined his
club are squares. Nearly all circles have one colour and nearly all squares the other. Right, draws of both rates;
the one inside a side is several times as large.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.csgraph import shortest_path

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

friends = {
    1: [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 20, 22, 32], 2: [3, 4, 8, 14, 18, 20, 22, 31],
    3: [4, 8, 9, 10, 14, 28, 29, 33], 4: [8, 13, 14], 5: [7, 11], 6: [7, 11, 17], 7: [17], 9: [31, 33, 34],
    10: [34], 14: [34], 15: [33, 34], 16: [33, 34], 19: [33, 34], 20: [34], 21: [33, 34], 23: [33, 34],
    24: [26, 28, 30, 33, 34], 25: [26, 28, 32], 26: [32], 27: [30, 34], 28: [34], 29: [32, 34], 30: [33, 34],
    31: [33, 34], 32: [33, 34], 33: [34],
}  # fmt: skip
instructors = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 20, 22]  # who joined the instructor's club
n = 34
edges = np.array([(a - 1, b - 1) for a, others in friends.items() for b in others])
is_friend = np.zeros((n, n), bool)
is_friend[tuple(edges.T)] = is_friend[tuple(edges.T[::-1])] = True
first, second = np.triu_indices(n, 1)
seen, degree = is_friend[first, second], is_friend.sum(axis=0)
expected = degree[first] * degree[second] / degree.sum()  # friendships of a pair, if friends were found at random


def prior(v):
    """Both rates log-normal, each side by a fair coin; normalised."""
    logs = jnp.log(jnp.stack([v["inside"], v["between"]]))
    return jnp.sum(-0.5 * logs**2 - logs - 0.5 * jnp.log(2 * jnp.pi)) + (n - 1) * jnp.log(0.5)


def log_prob(v):
    side = jnp.concatenate([jnp.zeros(1, v["side"].dtype), v["side"]])
    rate = jnp.where(side[first] == side[second], v["inside"], v["between"])
    return prior(v) + jnp.sum(seen * jnp.log(rate) - rate * expected)


def draw(key):
    a, b = jax.random.split(key)
    inside, between = jnp.exp(jax.random.normal(a, (2,)))
    return {"inside": inside, "between": between, "side": jax.random.randint(b, (n - 1,), 0, 2)}


space = tz.Space(inside=tz.real(low=0.0), between=tz.real(low=0.0), side=tz.binary(n - 1))
result = tz.sample(tz.Target(log_prob, space, reference=tz.Reference(prior, draw)), seed=0)
print(result.verdict)
print(result.choice)
for name in ("inside", "between"):
    print(f"friendships {name}: {result[name].mean():.2f} +- {result[name].std():.2f} times as many as at random")
chance = np.concatenate([[0.0], result["side"].mean(axis=(0, 1))])
joined = np.array([i + 1 not in instructors for i in range(n)])
print(f"members whose side is the club that they joined: {np.sum((chance > 0.5) == joined)} of {n}")
print("uncertain:", *(f"{i + 1} ({chance[i]:.2f})" for i in np.flatnonzero(abs(chance - 0.5) < 0.4)))

with themed():
    figure = new_figure(7.5, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    steps = shortest_path(is_friend.astype(float)) ** 2
    steps -= steps.mean(axis=0) + steps.mean(axis=1, keepdims=True) - steps.mean()
    place = np.linalg.eigh(-steps)[1][:, -2:]  # friends are near each other
    for edge in edges:
        left.plot(*place[edge].T, color="#c9ced6", linewidth=0.7, zorder=1)
    for shape, mine in (("o", ~joined), ("s", joined)):
        left.scatter(*place[mine].T, c=chance[mine], marker=shape, vmin=0, vmax=1, s=45, zorder=2)
    left.set_axis_off()
    right.plot(result["inside"].ravel()[::4], result["between"].ravel()[::4], ".", markersize=2, alpha=0.4)
    right.set(xlabel="rate inside a side", ylabel="rate between sides")
    figure.savefig("karate_club.png", dpi=90)
