"""Three kinds of iris from the length of their petals alone

Fisher measured 150 irises of three species (shipped with scikit-learn). Suppose that the species were never written
down, and that only the length of a petal is known: how long are the petals of each kind, and which flower is of
which kind? This is a Gaussian mixture, of logarithms. Its unknowns are the shares of the three kinds, their
means, one standard deviation, and a label for each flower: seven reals and 150 discrete variables.

It is a NumPyro model, handed over as it is. The means are increasing, so that the kinds cannot exchange their
labels. Terrazzo notices that the labels are independent given the reals, sums them out, and draws them exactly
afterwards.

One species is certain. The other two overlap, and the labels say so: a flower between them gets both labels.

Figure: Left, dots of petal lengths, coloured by species, with the posterior probability of the third kind as a
rising curve. Right, the posterior densities of the three mean lengths; the first is narrow, the other two are wide.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_iris

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

flowers = load_iris()
length = flowers.data[:, 2]
increasing = dist.transforms.OrderedTransform()


def petals(log_length):
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(3, 5.0)))
    steps = dist.Normal(jnp.array([0.5, -0.5, -1.0]), 0.5)  # the first mean, and the logarithms of the two steps
    mean = numpyro.sample("mean", dist.TransformedDistribution(steps.to_event(1), increasing))
    width = numpyro.sample("width", dist.LogNormal(-2.0, 0.5))
    with numpyro.plate("flower", len(log_length)):
        label = numpyro.sample("label", dist.Categorical(share))
        numpyro.sample("log_length", dist.Normal(mean[label], width), obs=log_length)


result = tz.sample(tz.from_numpyro(petals, np.log(length)), seed=0, draws=2000)
print(result.verdict)
print(result.choice)
for i in range(3):
    share, middle = result["share"][..., i].mean(), np.exp(result["mean"][..., i]).mean()
    true = np.exp(np.log(length[flowers.target == i]).mean())
    print(
        f"kind {i + 1}: share {share:.2f}, petals of {middle:.2f} cm ({flowers.target_names[i]}: 0.33, {true:.2f} cm)"
    )
chance = np.mean(result["label"][..., None] == np.arange(3), axis=(0, 1))
right = np.mean(chance.argmax(axis=1) == flowers.target)
print(f"the most probable label is the species for {100 * right:.0f} % of the flowers")
print(f"labels less certain than 90 %: {np.sum(chance.max(axis=1) < 0.9)} of {len(length)}")

with themed():
    figure = new_figure(7.5, 3.0)
    left, right = figure.subplots(1, 2)
    for i, name in enumerate(flowers.target_names):
        mine = flowers.target == i
        left.plot(length[mine], chance[mine, 2], ".", label=name)
        right.hist(np.exp(result["mean"][..., i]).ravel(), bins=30, density=True)
    left.set(xlabel="length of a petal (cm)", ylabel="P(third kind)")
    left.legend()
    right.set(xlabel="typical length of a kind (cm)", ylabel="posterior density")
    figure.savefig("iris_petals.png", dpi=90)
