"""What a stored warm-up left, on the devices and in the structure of the chains that go on from it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.engine.loop import Chains
from terrazzo.inference.reporting import by_name
from terrazzo.spaces import Configuration
from terrazzo.storage.checkpoints import restore_states
from terrazzo.storage.setups import Setup


def restored_parameters(chains: Chains, stored: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tuned parameters as `by_name` stored them, in the structure that the sampler's tuning gives them."""
    if chains.spec.tuning is None:
        return {}
    tuning = chains.spec.tuning(chains.problem.target, **chains.problem.options)
    like = tuning.final(tuning.init())
    leaves = [jnp.asarray(stored[name]) for name in by_name(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def restored_states(chains: Chains, num_chains: int, setup: Setup) -> Any:
    """The states of all chains after warm-up."""
    space = chains.problem.target.space
    theta: Any = jnp.zeros((num_chains, space.num_dims), jnp.int32)
    if space.num_reals:
        theta = Configuration(theta, jnp.zeros((num_chains, space.num_reals), jnp.result_type(float)))
    like = jax.eval_shape(lambda t: chains.start(jax.random.key(0), t), theta)
    return restore_states(like, setup.states)
