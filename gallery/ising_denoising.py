"""Cleaning a noisy picture: an Ising model

A photograph of a flower (shipped with scikit-learn), reduced to 24 x 24 pixels in black and white. A fifth of the
pixels were flipped. What did the picture look like? In the Ising model neighbouring pixels like to be equal, and
each pixel likes to be what was seen:

    log pi(s) = J sum_neighbours s_i s_j + h sum_i s_i y_i,    s_i = +-1

with h = log(0.8 / 0.2) / 2 from the noise, and J = 0.5. The draws are pictures; their mean is the probability of
white in each pixel.

Figure: Five pictures in a row: the original, the same with noise, one draw, the mean of the draws, and where the
draws are unsure.
"""

import jax.numpy as jnp
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

photo = Image.fromarray(load_sample_image("flower.jpg")[40:380, 120:460]).convert("L").resize((24, 24))
original = (np.asarray(photo) > np.median(np.asarray(photo))).astype(int)
noise = np.random.default_rng(0).random(original.shape) < 0.2
noisy = original ^ noise
field = jnp.asarray(np.log(0.8 / 0.2) / 2 * (2.0 * noisy - 1.0))


def log_prob(pixels):
    s = 2.0 * pixels - 1.0
    pairs = jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1])
    return 0.5 * pairs + jnp.sum(field * s)


result = tz.sample(log_prob, tz.binary(original.shape), seed=0, max_seconds=80)
print(result.verdict)
print("moves:", result.choice)
mean = result["theta"].mean(axis=(0, 1))
print(f"wrong pixels: {noise.sum()} with noise, {np.sum((mean > 0.5) != original)} in the posterior's majority, of 576")

with themed():
    figure = new_figure(8.5, 2.1)
    unsure = 1 - np.abs(2 * mean - 1)
    pictures = {"original": original, "noisy": noisy, "a draw": result["theta"][0, -1], "mean": mean, "unsure": unsure}
    for axis, (name, picture) in zip(figure.subplots(1, 5), pictures.items(), strict=True):
        axis.imshow(picture, vmin=0, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.savefig("ising_denoising.png", dpi=90)
