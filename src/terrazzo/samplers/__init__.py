"""The samplers, by name. Adding one is one file and one line of `REGISTRY`; the laws of DESIGN section 5 then apply."""

import difflib
from typing import Any

from terrazzo.errors import OptionError
from terrazzo.samplers.base import Info as Info
from terrazzo.samplers.base import SamplerSpec as SamplerSpec
from terrazzo.samplers.base import SamplingAlgorithm as SamplingAlgorithm
from terrazzo.samplers.base import State as State
from terrazzo.samplers.base import Tuning as Tuning
from terrazzo.samplers.gibbs import gibbs as gibbs
from terrazzo.samplers.gibbs import metropolised_gibbs as metropolised_gibbs
from terrazzo.samplers.gibbs import systematic_gibbs as systematic_gibbs
from terrazzo.samplers.metropolis import metropolis as metropolis
from terrazzo.samplers.metropolis import tuning as _metropolis_tuning

REGISTRY: dict[str, SamplerSpec] = {
    spec.name: spec
    for spec in (
        SamplerSpec(
            "metropolis",
            metropolis,
            "random-walk Metropolis: +-1 steps or redraws, several coordinates at once",
            "Metropolis et al. (1953)",
            tuning=_metropolis_tuning,
        ),
        SamplerSpec("gibbs", gibbs, "Gibbs, random scan", "Geman & Geman (1984)"),
        SamplerSpec("systematic_gibbs", systematic_gibbs, "Gibbs, a whole sweep a step", "Geman & Geman (1984)"),
        SamplerSpec("metropolised_gibbs", metropolised_gibbs, "Gibbs that never proposes to stay", "Liu (1996)"),
    )
}


def get(name: Any) -> SamplerSpec:
    """The registry's line for a name; raises `OptionError` with the nearest names if there is none.

    >>> get("gibbs").reference
    'Geman & Geman (1984)'
    """
    if name in REGISTRY:
        return REGISTRY[name]
    near = difflib.get_close_matches(str(name), REGISTRY, n=3, cutoff=0.4)
    remedy = f"did you mean {', '.join(near)}?" if near else f"one of {', '.join(REGISTRY)}"
    raise OptionError("sampler", f"{name!r} is unknown", remedy)
