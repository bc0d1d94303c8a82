"""Which parts is a picture made of?

The pictures of Griffiths and Ghahramani (2006): each of four parts (a cross, a frame, stairs and a T) is in a
picture or not, at random, and noise is added. Seen are 40 noisy pictures. Unknown are what the four parts look like,
and which of them are in which picture: 144 reals and a bit for each part of each picture. This is a factor model
with Bernoulli factors.

Parts have no names, so that exchanging two of them would change nothing. Here the first four pictures are known to
show one part each, which names them. Terrazzo notices that pictures are independent given the parts, sums the bits
out (16 combinations a picture), and draws them exactly afterwards.

Figure: Above, five of the noisy pictures. Below, the posterior means of the four parts, clear of noise: a cross, a
frame, stairs and a T.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

corners = ["010111010", "111101111", "100110111", "111010010"]  # 3 x 3 pixels each
parts = np.zeros((4, 6, 6))
for part, corner, (row, column) in zip(parts, corners, [(0, 0), (0, 3), (3, 0), (3, 3)], strict=True):
    part[row : row + 3, column : column + 3] = np.array([int(pixel) for pixel in corner]).reshape(3, 3)
rng, num_pictures = np.random.default_rng(0), 40
bits = np.concatenate([np.eye(4, dtype=int), rng.integers(0, 2, (num_pictures - 4, 4))])
pictures = bits @ parts.reshape(4, 36) + 0.5 * rng.normal(size=(num_pictures, 36))


def factors(pictures):
    part = numpyro.sample("part", dist.Normal(0.0, 1.0).expand([4, 36]).to_event(2))
    with numpyro.plate("picture", num_pictures - 4):
        bit = numpyro.sample("bit", dist.Bernoulli(jnp.full(4, 0.5)).to_event(1))
    shown = jnp.concatenate([jnp.eye(4), bit]) @ part
    numpyro.sample("pictures", dist.Normal(shown, 0.5).to_event(2), obs=pictures)


result = tz.sample(tz.from_numpyro(factors, pictures), seed=0)
print(result.verdict)
print(result.choice)
mean = result["part"].mean(axis=(0, 1)).reshape(4, 6, 6)
print(f"error of a pixel of the parts: {np.sqrt(np.mean((mean - parts) ** 2)):.2f} (noise of a picture: 0.50)")
chance = result["bit"].mean(axis=(0, 1))
print(f"bits that are right: {100 * np.mean((chance > 0.5) == bits[4:]):.1f} %")

with themed():
    figure = new_figure(7.0, 3.2)
    above, below = figure.subplots(2, 5)
    for axis, picture in zip(above, pictures[6:11], strict=True):
        axis.imshow(picture.reshape(6, 6), cmap="gray_r", vmin=-1, vmax=2)
    for axis, part in zip(below, mean, strict=False):
        axis.imshow(part, cmap="gray_r", vmin=-0.5, vmax=1.5)
    above[2].set_title("noisy pictures")
    below[2].set_title("parts (posterior means)")
    for axis in (*above, *below):
        axis.set_axis_off()
    figure.savefig("hidden_parts.png", dpi=90)
