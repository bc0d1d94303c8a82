"""A Boltzmann machine that dreams of digits

scikit-learn trains a restricted Boltzmann machine on its 8 x 8 handwritten digits. A trained machine is a
probability over 64 pixels:

    log pi(v) = b'v + sum_j log(1 + exp(c_j + W_j'v))

Drawing from such a machine can be hard, since a well-trained one has a mode for each kind of digit. With 14 hidden
units log Z is known too: a sum over the 16,384 states of the hidden side. So this page can compare Terrazzo's
estimate with the truth. With log Z the likelihood of a picture is known, and the machine can be judged. The verdict
on it is poor: the draws are faithful to the machine, but look alike. This small machine has not learned ten digits.

Figure: Two rows of ten pictures of 8 by 8 pixels: digits of the data above, draws from the machine below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from sklearn.neural_network import BernoulliRBM

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

pictures = (load_digits().data > 7).astype(float)
machine = BernoulliRBM(14, learning_rate=0.05, n_iter=60, random_state=0).fit(pictures)
weights, b, c = machine.components_, machine.intercept_visible_, machine.intercept_hidden_
W, bias, hidden_bias = jnp.asarray(weights), jnp.asarray(b), jnp.asarray(c)


def log_prob(pixels):
    v = pixels.ravel().astype(W.dtype)
    return bias @ v + jnp.sum(jax.nn.softplus(hidden_bias + W @ v))


result = tz.sample(log_prob, tz.binary((8, 8)), seed=0, max_seconds=90)
print(result.verdict)
print("moves:", result.choice)

hidden = np.stack(np.unravel_index(np.arange(2**14), (2,) * 14), axis=1)
truth = logsumexp(hidden @ c + np.logaddexp(0, b + hidden @ weights).sum(axis=1))
print(f"log Z {result.log_z:.3f} +- {result.log_z_standard_error:.3f}, the sum over hidden units {truth:.3f}")
fit = np.mean([float(log_prob(jnp.asarray(picture))) for picture in pictures[:300]]) - truth
print(f"mean log-probability of a picture of the data: {fit:.1f}")

with themed():
    figure = new_figure(8.0, 1.9)
    axes = figure.subplots(2, 10)
    for i in range(10):
        axes[0, i].imshow(pictures[i].reshape(8, 8))
        axes[1, i].imshow(result["theta"][i % 8, -1 - i // 8])
    for axis in axes.ravel():
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    axes[0, 0].set_ylabel("data")
    axes[1, 0].set_ylabel("draws")
    figure.savefig("rbm_digits.png", dpi=90)
