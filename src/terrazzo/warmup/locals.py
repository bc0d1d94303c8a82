"""Which local kernels are worth trying on a target, from what is known of it without running anything."""

from typing import Any, NamedTuple

from terrazzo.errors import UnsupportedError
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.slice_gibbs import UPDATES
from terrazzo.targets import Target

SLICE_FROM = 65  # values a coordinate may take before redrawing it by evaluating all of them is too dear
LARGEST_COVARIANCE = 512  # coordinates whose covariance integer Metropolis can learn
MAX_COLOURS_SHARE = 0.25  # a colouring pays if it has far fewer colours than there are coordinates


class Local(NamedTuple):
    """A local kernel and the options found for it on the host.

    Attributes:
        name: Its name in the registry.
        options: Keyword arguments of its factory.
        moves: How many of its steps touch about all coordinates once.
    """

    name: str
    options: dict[str, Any]
    moves: int


def _gibbs(target: Target) -> Local:
    """Gibbs in the form that suits the target: coloured, by slices, or site by site."""
    d = target.space.num_dims
    if target.space.max_size >= SLICE_FROM:
        return Local("slice_gibbs", {}, -(-d // UPDATES))
    if target.colours is not None and max(target.colours) + 1 <= MAX_COLOURS_SHARE * d:
        prepare = REGISTRY["coloured_gibbs"].prepare
        assert prepare is not None
        return Local("coloured_gibbs", prepare(target), 1)
    return Local("gibbs", {}, d)


def exploring_kernel(target: Target) -> tuple[str, dict[str, Any], int]:
    """The kernel inside the ladder, its options, and its steps between swaps."""
    local = _gibbs(target)
    return local.name, local.options, max(1, local.moves // 4)


def candidates(target: Target) -> list[Local]:
    """Local kernels to try: Gibbs, and what did best beside it on targets of this kind (docs/which-sampler.md)."""
    space = target.space
    found = [_gibbs(target)]
    if space.is_ordered.all() and space.max_size > 2 and space.num_dims <= LARGEST_COVARIANCE:
        found.append(Local("integer_metropolis", {}, 16))
    elif target.has_gradient:
        found.append(Local("discrete_langevin", {}, 4))
    return [local for local in found if _applies(target, local)]


def _applies(target: Target, local: Local) -> bool:
    check = REGISTRY[local.name].check
    try:
        if check is not None:
            check(target)
    except UnsupportedError:
        return False
    return True
