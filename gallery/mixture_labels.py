"""Which galaxies belong together? Labels of a mixture

The speeds of 82 galaxies from six conic sections of the sky (Roeder, 1990) show groups: voids and filaments of the
universe. Each galaxy gets one of four labels. Means and variances of the groups are integrated out, so that the
labels are all that is unknown: 4^82 assignments.

The labels themselves mean nothing: exchanging two of them changes no probability, so that there are 24 equal modes.
What means something is whether two galaxies have the same label. To keep two of the 24, the slowest and the fastest
galaxy are given labels 0 and 3 (`tz.condition`).

Even so, moves of single galaxies are not enough: to give a whole group another label, all its galaxies must change.
The default sampler noticed that chains stayed in different places, and did not trust its draws (in 80 seconds).
Parallel tempering by name mixes, because groups dissolve in the hot replicas, but only just: the settings here are
the third that were tried, and with 16 temperatures and `thin=6` R-hat was 1.012, which is not trusted. The mean
sizes of the groups were the same to 0.1. The grade of a named sampler is "unchecked" at best, because nothing else
is compared with its chains.

The slow and the fast group are certain; the large one between them may be two that overlap.

Figure: Left, a dot for each galaxy at its speed. Right, a square picture: how probable it is that two galaxies,
sorted by speed, have the same label; blocks along the diagonal are the groups.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

speeds = np.array([
    9172, 9350, 9483, 9558, 9775, 10227, 10406, 16084, 16170, 18419, 18552, 18600, 18927, 19052,
    19070, 19330, 19343, 19349, 19440, 19473, 19529, 19541, 19547, 19663, 19846, 19856, 19863,
    19914, 19918, 19973, 19989, 20166, 20175, 20179, 20196, 20215, 20221, 20415, 20629, 20795,
    20821, 20846, 20875, 20986, 21137, 21492, 21701, 21814, 21921, 21960, 22185, 22209, 22242,
    22249, 22314, 22374, 22495, 22746, 22747, 22888, 22914, 23206, 23241, 23263, 23484, 23538,
    23542, 23666, 23706, 23711, 24129, 24285, 24289, 24366, 24717, 24990, 25633, 26960, 26995,
    32065, 32789, 34279,
]) / 1000.0  # fmt: skip
y = jnp.asarray(speeds - speeds.mean())
a, b, k = 2.0, 1.0, 0.01  # variance ~ InvGamma(a, b), mean | variance ~ N(0, variance / k)


def log_prob(label):
    member = jax.nn.one_hot(label, 4)
    n, total, squares = member.sum(axis=0), y @ member, y**2 @ member
    b_n = b + 0.5 * (squares - total**2 / (k + n))
    groups = gammaln(a + n / 2) - (a + n / 2) * jnp.log(b_n) - 0.5 * jnp.log(k + n) - n / 2 * jnp.log(2 * jnp.pi)
    return jnp.sum(groups + gammaln(n + 1.0))  # Dirichlet(1, 1, 1, 1) weights, integrated out too


target = tz.Target(log_prob, tz.categorical(4, shape=len(speeds)))
tempering = tz.samplers.parallel_tempering(num_temperatures=10, kernel="systematic_gibbs")
result = tz.sample(tz.condition(target, {0: 0, len(speeds) - 1: 3}), seed=0, sampler=tempering, thin=10)
print(result.verdict)
print(f"worst R-hat {result.summary()['r_hat'].max():.3f}, least ESS {result.summary()['ess_bulk'].min():.0f}")
free = result["theta"].reshape(-1, len(speeds) - 2)[::4]
labels = np.concatenate([np.zeros((len(free), 1), int), free, np.full((len(free), 1), 3)], axis=1)
together = np.mean(labels[:, :, None] == labels[:, None, :], axis=0)
sizes = np.sort(np.stack([(labels == j).sum(axis=1) for j in range(4)], axis=1), axis=1)
print("mean sizes of the groups:", *(f"{n:.1f}" for n in sizes.mean(axis=0)))

with themed():
    figure = new_figure(7.5, 3.0)
    left, right = figure.subplots(1, 2)
    left.plot(speeds, np.arange(len(speeds)), ".")
    left.set(xlabel="speed (1,000 km/s)", ylabel="galaxy, sorted")
    picture = right.imshow(together, vmin=0, vmax=1, origin="lower")
    right.set(xlabel="galaxy", ylabel="galaxy", title="P(same group)")
    figure.colorbar(picture)
    figure.savefig("mixture_labels.png", dpi=90)
