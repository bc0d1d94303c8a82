"""Frustration: a spin glass in three dimensions

In the Edwards-Anderson model 4 x 4 x 4 spins sit on a periodic lattice, and each pair of neighbours is coupled by
+1 or -1 at random. No state satisfies all couplings, and at low temperature there are many valleys with walls
between them: the classic case in which chains of single-site moves are stuck and agree with themselves.

Physicists look at the overlap of two independent states, q = mean(s_i s'_i). In a magnet it has two sharp values;
in a spin glass its law is broad. It must be symmetric, because turning all spins changes no energy: a check on the
draws that needs no exact answer. Chains that were stuck would each have an overlap of their own. Local moves alone
would take some hundred times as long here, as the line about the moves says; the draws come from tempering.

Figure: A histogram of the overlap of pairs of draws from different chains, two broad humps of equal size on both
sides of zero.
"""

import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

size, beta = 4, 1.0
couplings = jnp.asarray(np.random.default_rng(1).choice([-1.0, 1.0], (3, size, size, size)))


def log_prob(theta):
    s = 2.0 * theta - 1.0
    return beta * sum(jnp.sum(couplings[axis] * s * jnp.roll(s, 1, axis)) for axis in range(3))


result = tz.sample(log_prob, tz.binary((size, size, size)), seed=0, max_seconds=80)
print(result.verdict)
print("moves:", result.choice)
print(f"log Z {result.log_z:.2f} +- {result.log_z_standard_error:.2f}")

spins = 2 * result["theta"].reshape(result.num_chains, result.num_draws, -1) - 1
overlaps = np.concatenate([np.mean(spins[i] * spins[j], axis=1) for i in range(8) for j in range(i)])
print(f"overlap: mean {overlaps.mean():+.3f}, mean square {np.mean(overlaps**2):.3f}")
energy = -result.log_prob / beta / size**3
print(f"energy per spin {energy.mean():.3f}")

with themed():
    figure = new_figure(6.0, 2.8)
    axis = figure.subplots()
    axis.hist(overlaps, bins=np.linspace(-1.0, 1.0, 34), density=True)
    axis.set(xlabel="overlap of two draws", ylabel="density")
    figure.savefig("spin_glass.png", dpi=90)
