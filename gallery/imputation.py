"""Completing half a digit: conditional sampling

The upper half of a handwritten digit is known. What can the lower half be? The model is a restricted Boltzmann
machine trained by scikit-learn on its 8 x 8 digits, as on the page about the machine itself. `tz.condition(target,
known)` gives the law of the free pixels given the others: a NumPy masked array says which are known, and the masked
ones stay free.

The result is a target like any other. The 32 free pixels have names of their own ("4, 0" to "7, 7").

Figure: Three rows, one digit each: the digit, its known upper half, and five completions drawn from the machine.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import BernoulliRBM

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

digits = load_digits()
pictures = (digits.data > 7).astype(float)
machine = BernoulliRBM(64, learning_rate=0.05, n_iter=60, random_state=0).fit(pictures)
W = jnp.asarray(machine.components_)
bias, hidden_bias = jnp.asarray(machine.intercept_visible_), jnp.asarray(machine.intercept_hidden_)


def log_prob(pixels):
    v = pixels.ravel().astype(W.dtype)
    return bias @ v + jnp.sum(jax.nn.softplus(hidden_bias + W @ v))


target = tz.Target(log_prob, tz.binary((8, 8)))
is_free = np.zeros((8, 8), bool)
is_free[4:] = True
chosen, rows = (0, 1, 7), []
for i in chosen:
    picture = pictures[i].reshape(8, 8).astype(int)
    result = tz.sample(tz.condition(target, np.ma.array(picture, mask=is_free)), seed=0, max_seconds=35)
    lower = result["theta"].reshape(result.num_chains, result.num_draws, 4, 8)
    right = np.mean((lower.mean(axis=(0, 1)) > 0.5) == picture[4:])
    print(f"digit {digits.target[i]}: {100 * right:.0f} % of the hidden pixels guessed right; {result.verdict}")
    rows.append((picture, [np.concatenate([picture[:4], lower[chain, -1]]) for chain in range(5)]))

with themed():
    figure = new_figure(7.0, 3.2)
    axes = figure.subplots(len(rows), 7)
    for line, (picture, completions) in zip(axes, rows, strict=True):
        known = np.where(is_free, 0.5, picture)
        for axis, shown in zip(line, (picture, known, *completions), strict=True):
            axis.imshow(shown, vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
    for axis, name in zip(axes[0], ("digit", "known", *["draw"] * 5), strict=True):
        axis.set_title(name, fontsize=10)
    figure.savefig("imputation.png", dpi=90)
