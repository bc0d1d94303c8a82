"""The paper's first experiment: a flow alone, and a flow with MCMC

Jaini, Nielsen and Welling (2021) train a normalising flow to push a Gaussian onto a discrete target, and run
Metropolis-Hastings in the latent space. Their first example is a mixture of five Gaussians on a grid of 64 x 64.
The flow alone is wrong wherever training was; MCMC in its latent space is exact, whatever the flow has learned.

With 4,096 states the exact law is known, so that the total variation distance of the draws can be compared with
that of as many independent draws, which is as small as it can be.

Figure: Four heat maps: the exact law of a ring of five Gaussians, draws of the flow alone, draws by MCMC in its
latent space, and draws by the default sampler.
"""

import jax
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import grid_histogram, panels
from terrazzo.problems.mixture import exact_probabilities

target = tz.problems.mixture(0)
sizes, exact = np.array([64, 64]), exact_probabilities(target).reshape(64, 64)
recipe = tz.flow(width=64, num_layers=4)
training = tz.Training(num_steps=1000, objective=tz.reverse_kl("paper"))
walk = tz.samplers.latent_random_walk(transport=recipe, training=training)
mcmc = tz.sample(target, seed=0, sampler=walk, chains=32, draws=1000, thin=10, warmup=500)
default = tz.sample(target, seed=0, chains=32, draws=1000)

z = jax.random.normal(jax.random.key(1), (32000, 2))
alone = np.asarray(jax.jit(jax.vmap(mcmc.transport.push))(z)[0])
independent = np.random.default_rng(0).multinomial(32000, exact.ravel()).reshape(64, 64) / 32000
grids = {
    "exact": exact,
    "flow alone": grid_histogram(alone, sizes),
    "flow + MCMC": grid_histogram(mcmc["theta"], sizes),
    "default": grid_histogram(default["theta"], sizes),
}
print("total variation distance from the exact law:")
distances = {name: 0.5 * np.abs(grid - exact).sum() for name, grid in grids.items()}
distances["independent draws"] = 0.5 * np.abs(independent - exact).sum()
for name, distance in list(distances.items())[1:]:
    print(f"  {name:<17} {distance:.3f}")
print("flow + MCMC:", mcmc.verdict)
print("default:", default.verdict)
captions = {name: f"distance {distances[name]:.3f}" for name in grids if name != "exact"}
panels(grids, "paper_mixture.png", captions=captions)
