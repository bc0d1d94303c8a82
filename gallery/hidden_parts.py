"""Which parts is a picture made of?

Each of three parts (a row, a column and a square) is in a picture or not, at random, and noise is added: small
versions of the pictures of Griffiths and Ghahramani (2006). Seen are 30 noisy pictures. Unknown are what the three
parts look like, and which of them are in which picture: 48 reals, and a bit for each part of each picture. This is a
factor model with Bernoulli factors.

Parts have no names, so that exchanging two of them would change nothing. Here the first six pictures are known to
show one part each, which names them. Terrazzo notices that pictures are independent given the parts, sums the bits
out (8 combinations a picture), and draws them exactly afterwards.

Figure: Above, six of the noisy pictures. Below, the posterior means of the three parts: a row of dark pixels, a
column, and a square.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

shapes = ["1111000000000000", "1000100010001000", "0000000000110011"]  # 4 x 4 pixels each
parts = np.array([[int(pixel) for pixel in shape] for shape in shapes])
rng, num_pictures, noise = np.random.default_rng(0), 30, 0.4
known = np.repeat(np.eye(3, dtype=int), 2, axis=0)  # the first six pictures show one part each
bits = np.concatenate([known, rng.integers(0, 2, (num_pictures - 6, 3))])
pictures = bits @ parts + noise * rng.normal(size=(num_pictures, 16))


def factors(pictures):
    part = numpyro.sample("part", dist.Normal(0.5, 0.5).expand([3, 16]).to_event(2))
    with numpyro.plate("picture", num_pictures - 6):
        bit = numpyro.sample("bit", dist.Bernoulli(jnp.full(3, 0.5)).to_event(1))
    shown = jnp.concatenate([known, bit]) @ part
    numpyro.sample("pictures", dist.Normal(shown, noise).to_event(2), obs=pictures)


result = tz.sample(tz.from_numpyro(factors, pictures), seed=0)
print(result.verdict)
print(result.choice)
mean = result["part"].mean(axis=(0, 1))
print(f"error of a pixel of the parts: {np.sqrt(np.mean((mean - parts) ** 2)):.2f} (noise of a picture: {noise:.2f})")
chance = result["bit"].mean(axis=(0, 1))
print(f"bits that are right: {100 * np.mean((chance > 0.5) == bits[6:]):.1f} %")

with themed():
    figure = new_figure(7.0, 3.0)
    above, below = figure.subfigures(2, 1)
    above.suptitle("six noisy pictures")
    below.suptitle("the three parts (posterior means)")
    shown = [
        *zip(above.subplots(1, 6), pictures[6:12], strict=True),
        *zip(below.subplots(1, 6), [*mean, None, None, None], strict=True),
    ]
    for axis, picture in shown:
        axis.set_axis_off()
        if picture is not None:
            axis.imshow(picture.reshape(4, 4), cmap="gray_r", vmin=-0.5, vmax=1.8)
    figure.savefig("hidden_parts.png", dpi=90)
