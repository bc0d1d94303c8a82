"""Models written in other libraries, as targets."""

from terrazzo.models.base import Model as Model
from terrazzo.models.base import Observed as Observed
from terrazzo.models.entry import from_numpyro as from_numpyro
from terrazzo.models.entry import from_pymc as from_pymc

__all__ = ["Model", "Observed", "from_numpyro", "from_pymc"]
