"""Which local kernels are worth trying on a target, from what is known of it without running anything."""

import os
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.auto.policy import CPU, Policy
from terrazzo.errors import UnsupportedError
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.kernels.default_gibbs import default_gibbs
from terrazzo.samplers.kernels.slice_gibbs import UPDATES
from terrazzo.targets.reading import structure_of
from terrazzo.targets.target import Target

LINEAR_ALGEBRA = re.compile(r"= (cholesky|triangular_solve|lu|eigh|qr|geqrf|householder_product)\b")
SAFE_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


class Local(NamedTuple):
    """A local kernel and the options found for it on the host.

    Attributes:
        name: Its name in the registry.
        options: Keyword arguments of its factory.
        moves: How many of its steps touch about all coordinates once.
        has_brief_tuning: Whether its parameters are found in few steps.
    """

    name: str
    options: dict[str, Any]
    moves: int
    has_brief_tuning: bool = False


class Candidate(NamedTuple):
    """What is measured: options of the hybrid sampler."""

    label: str
    options: dict[str, Any]
    local: Local
    num_local: int
    uses_transport: bool


def alone(local: Local, num_local: int) -> Candidate:
    """Local moves alone; one that touches all coordinates is the step itself, without a loop around it."""
    count = 1 if local.moves == 1 else jnp.asarray(num_local, jnp.int32)
    options = {"local": local.name, "local_options": local.options, "num_local": count}
    return Candidate(f"{num_local} x {local.name}", options, local, num_local, False)


def paired(local: Local, num_local: int, rounds: int, scale: float | None = None) -> Candidate:
    """A jump, then local moves; with a scale, a jump that keeps a part of z."""
    count = jnp.asarray(num_local, jnp.int32)
    options = alone(local, num_local).options | {"num_local": count, "move": "independence", "num_rounds": rounds}
    if scale is None:
        return Candidate(f"transport + {num_local} x {local.name}", options, local, num_local, True)
    options |= {"move": "pcn", "scale": jnp.asarray(scale, jnp.result_type(float))}
    return Candidate(f"pCN {scale} + {num_local} x {local.name}", options, local, num_local, True)


def _gibbs(target: Target) -> Local:
    """The default Gibbs, in the smallest steps that cost no more a site: how many make a step, a trial finds."""
    d, (name, options) = target.space.num_dims, default_gibbs(target)
    if name == "slice_gibbs":
        return Local(name, {}, -(-d // UPDATES))
    if name == "systematic_gibbs" and target.running is None and not options:
        return Local("gibbs", {}, d)
    return Local(name, options, 1)


def _has_hints(target: Target) -> bool:
    return target.has_cheap_neighbours or target.colours is not None or target.soft_level is not None


def _clusters(target: Target, policy: Policy, *, is_symmetric: bool = False) -> Local | None:
    """Cluster moves, where the function was found to be an Ising or Potts model that is hardly frustrated.

    Args:
        target: The target.
        policy: The share of couplings that must favour equal values.
        is_symmetric: Whether to ask for a model without fields and without any other coupling: there clusters are the
            moves to explore with.
    """
    structure = None if _has_hints(target) else structure_of(target)
    form = None if structure is None or structure.is_whole else structure.potts
    if form is None or not len(form.couplings):
        return None
    share = float((form.couplings > 0).mean())
    if share < (1.0 if is_symmetric or target.space.max_size > 2 else policy.cluster_share):
        return None
    if is_symmetric and np.ptp(form.fields, axis=1).max() > policy.no_field * np.abs(form.couplings).max():
        return None
    return _prepared("swendsen_wang", target)


def _trees(target: Target, policy: Policy) -> Local | None:
    """Redraws of whole trees, where a pair model has cycles but few neighbours a site."""
    structure = None if _has_hints(target) else structure_of(target)
    pairs = None if structure is None or structure.is_whole else structure.pairs
    if structure is None or pairs is None or 2 * len(pairs.edges) > policy.tree_degree * len(pairs.unary):
        return None
    if len(pairs.edges) <= len(pairs.unary) - structure.graph.num_components:
        return None  # a forest is answered exactly
    return _prepared("tree_gibbs", target)


def _prepared(name: str, target: Target) -> Local | None:
    prepare = REGISTRY[name].prepare
    assert prepare is not None
    try:
        return Local(name, prepare(target), 1)
    except UnsupportedError:
        return None


def _joint(target: Target, num_sites: int, policy: Policy) -> Local:
    """Redraws of so many sites jointly, where single sites are cut off."""
    d, block = target.space.num_dims, min(num_sites, target.space.num_dims)
    if block <= 2 or target.space.max_size**block > policy.largest_block:
        return Local("pair_gibbs", {}, max(1, d // 2))
    return Local("block_gibbs", {"block_size": block}, max(1, d // block))


def exploring_kernel(target: Target, policy: Policy = CPU, num_tied: int = 0) -> tuple[str, dict[str, Any], int]:
    """The kernel inside the ladder, its options, and its steps between swaps.

    Args:
        target: The target.
        policy: How many moves come between two swaps.
        num_tied: How many sites must change together for single sites not to be cut off (`reach`); 0 if they are not.
    """
    if num_tied:
        local = _joint(target, num_tied, policy)
        return local.name, local.options, max(1, int(policy.tied_sweeps_a_round * local.moves))
    if target.running is not None:  # hot replicas change half of the sites that they redraw
        return "gibbs", {"num_updates": max(2, int(policy.sweeps_a_round * target.space.num_dims))}, 1
    local = _clusters(target, policy, is_symmetric=True) or _gibbs(target)
    return local.name, local.options, max(1, int(policy.sweeps_a_round * local.moves))


def candidates(target: Target, policy: Policy = CPU, num_tied: int = 0) -> list[Local]:
    """Local kernels to try: Gibbs, and what did best beside it on targets of this kind (docs/which-sampler.md).

    The most promising come first: a trial that runs out of time leaves the last ones out. Where single sites are cut
    off, only kernels that change several sites together can mix.
    """
    space = target.space
    if num_tied:
        found = [_joint(target, num_tied, policy), Local("swap", {}, space.num_dims)]
    else:
        found = [_gibbs(target)]
        if space.is_ordered.all() and space.max_size > 2:
            if space.num_dims <= policy.largest_covariance:
                found.insert(0, Local("integer_metropolis", {}, policy.metropolis_moves))
            found.insert(0, Local("discontinuous_hmc", {}, 1, has_brief_tuning=True))
        elif target.has_gradient and target.running is None and not may_hang(target):  # a running sweep is far cheaper
            found.append(Local("discrete_langevin", {}, policy.langevin_moves))
        clusters, trees = _clusters(target, policy), _trees(target, policy)
        found = [*([clusters] if clusters else []), *found[:1], *([trees] if trees else []), *found[1:]]
    return [local for local in found if _applies(target, local)]


def may_hang(target: Target) -> bool:
    """Whether batched linear algebra would run on a CPU: its gradients in a loop, or beside another program, may hang.

    XLA runs independent operations at the same time there, and these wait for each other's threads forever (seen with
    jaxlib 0.10: the gradient of a Cholesky factor, d = 100, 16 chains, two cores), unless a flag prevents it.
    """
    if jax.default_backend() != "cpu" or os.cpu_count() == 1 or SAFE_FLAG in os.environ.get("XLA_FLAGS", ""):
        return False
    theta = jax.ShapeDtypeStruct((target.space.num_dims,), jnp.int32)
    if target.space.num_reals:
        y = jax.ShapeDtypeStruct((target.space.num_reals,), jnp.result_type(float))
        computation = str(jax.make_jaxpr(target.log_density)(theta, y))
    else:
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
