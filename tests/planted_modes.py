"""Targets with known modes, and transports that were shown only some of them.

All cases share their shapes, so that everything is compiled once: d = 16 bits, up to 8 product modes

    pi(theta) = sum_m w_m prod_i Bernoulli(theta_i; p_mi),    p_mi = 0.95 or 0.05,

normalised, so that log Z = 0, with exact draws.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz

NUM_DIMS, MOST_MODES, SHARP = 16, 8, 0.95
SPACE = tz.binary(NUM_DIMS)


class Modes(eqx.Module):
    """The log-probability of a mixture of product modes."""

    log_odds: jax.Array
    log_weights: jax.Array

    def __call__(self, theta):
        x = theta.astype(self.log_odds.dtype)
        ones = jax.nn.log_sigmoid(self.log_odds)
        zeros = jax.nn.log_sigmoid(-self.log_odds)
        return jax.nn.logsumexp(self.log_weights + (x * ones + (1.0 - x) * zeros).sum(axis=1))


class Case:
    """One planted case: its target, the weights of its modes, and exact draws of any of them."""

    def __init__(self, seed, *, least=0.05):
        rng = np.random.default_rng(seed)
        num_modes = int(rng.integers(2, MOST_MODES + 1))
        centres = [rng.integers(0, 2, NUM_DIMS)]
        while len(centres) < num_modes:  # modes far enough apart that no single flip leads from one to another
            new = rng.integers(0, 2, NUM_DIMS)
            if min(np.abs(new - old).sum() for old in centres) >= 5:
                centres.append(new)
        self.centres = np.array(centres)
        self.weights = least + (1 - num_modes * least) * rng.dirichlet(np.full(num_modes, 2.0))
        odds = np.zeros((MOST_MODES, NUM_DIMS))
        odds[:num_modes] = (2 * self.centres - 1) * np.log(SHARP / (1 - SHARP))
        log_weights = np.full(MOST_MODES, -np.inf)
        log_weights[:num_modes] = np.log(self.weights)
        fn = Modes(jnp.asarray(odds, jnp.result_type(float)), jnp.asarray(log_weights, jnp.result_type(float)))
        self.target = tz.Target(fn, SPACE, probe=False)
        self.rng = rng

    def draws(self, number, modes=None):
        """Exact draws, of all modes or of some."""
        modes = np.arange(len(self.weights)) if modes is None else np.asarray(modes)
        share = self.weights[modes] / self.weights[modes].sum()
        chosen = self.centres[self.rng.choice(modes, number, p=share)]
        return np.where(self.rng.random(chosen.shape) < SHARP, chosen, 1 - chosen).astype(np.int32)

    def transport(self, modes=None, *, num_steps=400):
        """An autoregressive transport trained on exact draws of these modes alone."""
        blank = tz.transports.autoregressive_transport(SPACE, key=jax.random.key(1), width=32)
        draws = self.draws(4000, modes)
        options = {"num_steps": num_steps, "batch_size": 128, "learning_rate": 5e-3, "check_every": 200}
        return tz.fit(jax.random.key(2), blank, self.target, objective=tz.forward_kl(draws), **options).transport

    def part(self):
        """Some of the modes, chosen so that what is left out has at least 5 % of the mass."""
        number = int(self.rng.integers(1, len(self.weights)))
        return np.sort(self.rng.permutation(len(self.weights))[:number])
