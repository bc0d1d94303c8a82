"""Which local kernels are worth trying on a target, from what is known of it without running anything."""

import os
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from terrazzo.errors import UnsupportedError
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.slice_gibbs import UPDATES
from terrazzo.targets import Target
from terrazzo.warmup.reach import MAX_BLOCK

LINEAR_ALGEBRA = re.compile(r"= (cholesky|triangular_solve|lu|eigh|qr|geqrf|householder_product)\b")
SAFE_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
SLICE_FROM = 65  # values a coordinate may take before redrawing it by evaluating all of them is too dear
LARGEST_COVARIANCE = 512  # coordinates whose covariance integer Metropolis can learn
MAX_COLOURS_SHARE = 0.25  # a colouring pays if it has far fewer colours than there are coordinates


class Local(NamedTuple):
    """A local kernel and the options found for it on the host.

    Attributes:
        name: Its name in the registry.
        options: Keyword arguments of its factory.
        moves: How many of its steps touch about all coordinates once.
        tuning_steps: Steps of the pooled chains in which its parameters are found.
    """

    name: str
    options: dict[str, Any]
    moves: int
    tuning_steps: int = 400


def _gibbs(target: Target) -> Local:
    """Gibbs in the form that suits the target: coloured, by slices, or site by site."""
    d = target.space.num_dims
    if target.space.max_size >= SLICE_FROM:
        return Local("slice_gibbs", {}, -(-d // UPDATES))
    if target.colours is not None and max(target.colours) + 1 <= MAX_COLOURS_SHARE * d:
        prepare = REGISTRY["coloured_gibbs"].prepare
        assert prepare is not None
        return Local("coloured_gibbs", prepare(target), 1)
    if target.running is not None:
        return Local("systematic_gibbs", {}, 1)
    return Local("gibbs", {}, d)


def _joint(target: Target, num_sites: int) -> Local:
    """Redraws of so many sites jointly, where single sites are cut off."""
    d, block = target.space.num_dims, min(num_sites, target.space.num_dims)
    if block <= 2 or target.space.max_size**block > MAX_BLOCK:
        return Local("pair_gibbs", {}, max(1, d // 2))
    return Local("block_gibbs", {"block_size": block}, max(1, d // block))


def exploring_kernel(target: Target, num_tied: int = 0) -> tuple[str, dict[str, Any], int]:
    """The kernel inside the ladder, its options, and its steps between swaps.

    Args:
        target: The target.
        num_tied: How many sites must change together for single sites not to be cut off (`reach`); 0 if they are not.
    """
    if num_tied:
        local = _joint(target, num_tied)
        return local.name, local.options, max(1, local.moves // 2)
    if target.running is not None:  # hot replicas change half of the sites that they redraw
        return "gibbs", {"num_updates": max(2, target.space.num_dims // 4)}, 1
    local = _gibbs(target)
    return local.name, local.options, max(1, local.moves // 4)


def candidates(target: Target, num_tied: int = 0) -> list[Local]:
    """Local kernels to try: Gibbs, and what did best beside it on targets of this kind (docs/which-sampler.md).

    The most promising come first: a trial that runs out of time leaves the last ones out. Where single sites are cut
    off, only kernels that change several sites together can mix.
    """
    space = target.space
    if num_tied:
        found = [_joint(target, num_tied), Local("swap", {}, space.num_dims)]
    else:
        found = [_gibbs(target)]
        if space.is_ordered.all() and space.max_size > 2:
            if space.num_dims <= LARGEST_COVARIANCE:
                found.insert(0, Local("integer_metropolis", {}, 16))
            found.insert(0, Local("discontinuous_hmc", {}, 1, tuning_steps=40))  # one number, and its steps are long
        elif target.has_gradient and target.running is None and not may_hang(target):  # a running sweep is far cheaper
            found.append(Local("discrete_langevin", {}, 4))
    return [local for local in found if _applies(target, local)]


def may_hang(target: Target) -> bool:
    """Whether gradients of batched linear algebra would run in a loop on a CPU.

    XLA runs independent operations at the same time there, and these wait for each other's threads for ever (seen with
    jaxlib 0.10: the gradient of a Cholesky factor, d = 100, 16 chains, two cores), unless it is told not to.
    """
    if jax.default_backend() != "cpu" or os.cpu_count() == 1 or SAFE_FLAG in os.environ.get("XLA_FLAGS", ""):
        return False
    theta = jax.ShapeDtypeStruct((target.space.num_dims,), jnp.int32)
    computation = str(jax.make_jaxpr(target.log_prob)(theta))
    return LINEAR_ALGEBRA.search(computation) is not None


def _applies(target: Target, local: Local) -> bool:
    check = REGISTRY[local.name].check
    try:
        if check is not None:
            check(target)
    except UnsupportedError:
        return False
    return True
