"""The one default Gibbs: a sweep over all sites, in the form that suits the target.

It is the kernel inside ladders and SMC where none is named, that of `tz.maximize`, and the first candidate of the
default sampler.
"""

from typing import Any

from terrazzo.samplers.kernels import coloured_gibbs
from terrazzo.samplers.kernels.gibbs import prepare_systematic
from terrazzo.samplers.parts.colouring import read_conditionals
from terrazzo.targets.target import Target

SLICE_FROM = 65  # values of a site: redrawing it by all of them costs more than slices (benchmarks/samplers.py)
COLOUR_SHARE = 0.25  # colours a site: a sweep by colours pays if it has no more (benchmarks/which_sampler.py)


def default_gibbs(target: Target) -> tuple[str, dict[str, Any]]:
    """The name of the kernel and its options, found on the host: by slices, by colours, or site by site.

    >>> import terrazzo as tz
    >>> default_gibbs(tz.Target(lambda t: -0.1 * (t - 50.0) ** 2, tz.integers(0, 99)))
    ('slice_gibbs', {'num_updates': 1})
    """
    num_dims = target.space.num_dims
    if target.space.max_size >= SLICE_FROM:
        return "slice_gibbs", {"num_updates": num_dims}
    read = read_conditionals(target)
    colours = target.colours if read is None else read[0]
    if colours is not None and max(colours) + 1 <= COLOUR_SHARE * num_dims:
        return "coloured_gibbs", coloured_gibbs.prepare(target)
    return "systematic_gibbs", {} if target.running is not None else prepare_systematic(target)
