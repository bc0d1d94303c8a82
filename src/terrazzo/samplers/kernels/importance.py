"""Importance sampling: independent draws of a transport, weighted against the target.

    theta ~ q,    w = pi(theta) / q(theta),    E_q[w] = Z,    E_pi[f] = E_q[w f] / E_q[w]

Where the dequantizer is not exact, w is the weight in the latent space, whose mean is Z too.
"""

from typing import Any

import numpy as np
from jaxtyping import Array

from terrazzo.diagnostics import importance_summary
from terrazzo.samplers.parts.base import Drawn
from terrazzo.targets.target import Target
from terrazzo.transports import AbstractTransport, sample_transport


def importance(key: Array, target: Target, chains: int, draws: int, *, transport: AbstractTransport) -> Drawn:
    """Independent draws of a transport with their weights (`result.log_weights`), and log Z from them.

    Args:
        key: A JAX key.
        target: The target.
        chains: Chains of draws; all are independent.
        draws: Draws a chain.
        transport: A trained transport.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> target = tz.Target(lambda t: jnp.sum(t * 0.5), tz.binary(3))
    >>> sampler = tz.samplers.importance(transport=tz.transports.product_transport(target.space))
    >>> result = tz.sample(target, seed=0, sampler=sampler, progress="off")
    >>> bool(abs(result.log_z - 3 * np.log1p(np.exp(0.5))) < 0.05)
    True
    """
    drawn = sample_transport(key, transport, target, chains * draws)
    shape = (chains, draws)
    log_weights: Any = np.asarray(drawn.log_weights)
    return Drawn(
        theta=np.asarray(drawn.theta).reshape(*shape, -1),
        log_prob=np.asarray(drawn.log_prob).reshape(shape),
        evidence=importance_summary(log_weights),
        log_weights=log_weights.reshape(shape),
        notes={},
    )
