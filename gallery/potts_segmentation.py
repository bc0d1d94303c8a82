"""Cutting a photograph into regions: a Potts model

A temple in China (shipped with scikit-learn), reduced to 20 x 30 pixels. Each pixel belongs to one of four regions
with a colour of its own, found beforehand by k-means. A pixel's colour is near that of its region, and neighbouring
pixels like to be in the same region:

    log pi(r) = -sum_i |colour_i - centre_{r_i}|^2 / (2 s^2) + J #{neighbours with equal r}

k-means labels each pixel alone. The posterior takes the neighbours into account, and says how sure it is of each
pixel.

Figure: Four pictures in a row: the photograph, the labels of k-means, the most probable label of each pixel, and
how probable that label is.
"""

import jax.numpy as jnp
import numpy as np
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.datasets import load_sample_image

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed
from terrazzo.report import theme

photo = np.asarray(Image.fromarray(load_sample_image("china.jpg")).resize((30, 20))) / 255.0
pixels = photo.reshape(-1, 3)
centres = KMeans(4, n_init=10, random_state=0).fit(pixels)
distance = np.sum((photo[:, :, None, :] - centres.cluster_centers_) ** 2, axis=-1)
seen = jnp.asarray(-distance / (2 * 0.15**2))  # (row, column, region)
rows, columns = np.mgrid[:20, :30]


def log_prob(region):
    equal = jnp.sum(region[1:] == region[:-1]) + jnp.sum(region[:, 1:] == region[:, :-1])
    return jnp.sum(seen[rows, columns, region]) + 0.8 * equal


result = tz.sample(log_prob, tz.categorical(4, shape=(20, 30)), seed=0, max_seconds=80)
print(result.verdict)
print("moves:", result.choice)
draws = result["theta"]
chance = np.stack([(draws == k).mean(axis=(0, 1)) for k in range(4)], axis=-1)
by_colour = centres.labels_.reshape(20, 30)
print(f"pixels that change their region: {np.sum(chance.argmax(-1) != by_colour)} of 600")
print(f"pixels whose region is less than 90 % certain: {np.sum(chance.max(-1) < 0.9)} of 600")

with themed():
    figure = new_figure(8.5, 2.0)
    pictures = {
        "photograph": photo,
        "k-means": theme.categories(by_colour, 4),
        "posterior": theme.categories(chance.argmax(-1), 4),
        "how sure": chance.max(-1),
    }
    for axis, (name, picture) in zip(figure.subplots(1, 4), pictures.items(), strict=True):
        axis.imshow(picture, vmin=0.25, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.savefig("potts_segmentation.png", dpi=90)
