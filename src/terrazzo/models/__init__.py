"""Models written in other libraries, as targets."""

from terrazzo.models.entry import from_numpyro as from_numpyro
from terrazzo.models.entry import from_pymc as from_pymc
from terrazzo.results.models import Model as Model
from terrazzo.results.models import Observed as Observed

__all__ = ["Model", "Observed", "from_numpyro", "from_pymc"]
