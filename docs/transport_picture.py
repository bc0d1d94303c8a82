"""The picture of the theory page: a Gaussian plane cut into cells, one for each configuration.

    python docs/transport_picture.py docs/transport.png

An autoregressive transport is trained on a mixture on a grid of 8 x 8 by the score function, for 400 steps
(seconds on a CPU). It needs matplotlib (`pip install 'terrazzo[plots]'`).
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed
from terrazzo.problems.mixture import exact_probabilities
from terrazzo.report import theme

SIZE, EDGE, PIXELS = 8, 2.6, 260


def main() -> None:
    target = tz.problems.mixture(0, num_bits=3)
    pi = exact_probabilities(target).reshape(SIZE, SIZE)
    transport = tz.autoregressive(width=32).build(jax.random.key(0), target.space)
    options = {"num_steps": 400, "batch_size": 512, "learning_rate": 3e-3, "start_beta": 1.0}
    fitted = tz.fit(jax.random.key(1), transport, target, **options).transport
    axis = np.linspace(-EDGE, EDGE, PIXELS)
    plane = jnp.asarray(np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2))
    push = jax.jit(jax.vmap(lambda z: fitted.push(z)[0]))
    cells = np.asarray(push(plane))
    colours = palette()
    image = colours[cells[:, 0], cells[:, 1]].reshape(PIXELS, PIXELS, 3)
    number = (cells[:, 0] * SIZE + cells[:, 1]).reshape(PIXELS, PIXELS)
    is_border = np.zeros_like(number, bool)
    is_border[:-1] |= number[:-1] != number[1:]
    is_border[:, :-1] |= number[:, :-1] != number[:, 1:]
    image[is_border] = 1.0
    z = np.asarray(jax.random.normal(jax.random.key(2), (150, 2)))
    theta = np.asarray(push(jnp.asarray(z)))
    with themed():
        figure = new_figure(8.0, 3.5)
        left, middle, right = figure.subplots(1, 3)
        left.imshow(image, origin="lower", extent=(-EDGE, EDGE, -EDGE, EDGE))
        left.plot(*z.T, ".", color="black", markersize=3)
        left.set(
            xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), title="latent plane: z", xlabel="cells, and draws of a Gaussian"
        )
        middle.imshow(np.swapaxes(colours, 0, 1), origin="lower")
        jitter = np.random.default_rng(0).uniform(-0.3, 0.3, theta.shape)
        middle.plot(*(theta + jitter).T, ".", color="black", markersize=3)
        middle.set(title="push(z): θ", xlabel="the same draws, pushed")
        right.imshow(pi.T, origin="lower")
        right.set(title="target: π(θ)", xlabel="what they should follow")
        for each in (left, middle, right):
            each.set(xticks=[], yticks=[])
            each.spines[:].set_visible(False)
        figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "transport.png", dpi=100, pil_kwargs={"optimize": True})


def palette() -> np.ndarray:
    """A light colour for each of the configurations, (8, 8, 3): neighbours differ."""
    base = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in theme.LINES]) / 255
    mixed = np.empty((SIZE, SIZE, 3))
    for i, j in np.ndindex(SIZE, SIZE):
        mixed[i, j] = 0.45 + 0.55 * base[(i + 3 * j) % SIZE]
    return mixed


if __name__ == "__main__":
    main()
