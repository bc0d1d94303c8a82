"""How a result holds its draws: compactly, decoded when they are asked for."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from terrazzo.spaces import Space
from terrazzo.storage.pieces import StoredArray


class Replicas(NamedTuple):
    """All temperatures of a tempered run, hottest first.

    Attributes:
        inverse_temperatures: The ladder, (replica,); a second leg falls from 1 to 0 again.
        log_prob: Untempered log pi of every replica, (chain, draw, replica), less log q0 where its leg starts from q0.
    """

    inverse_temperatures: np.ndarray
    log_prob: Any


class Draws(Mapping[str, np.ndarray]):
    """Draws by variable name, shape (chain, draw, *shape), decoded to the user's values when first asked for."""

    def __init__(self, space: Space, theta: Any, reals: Any = None):
        self._space, self._theta = space, theta
        self._reals = {} if reals is None else space.real_blocks(reals)
        self._decoded: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._space.names and not self._is_kept:
            raise KeyError(f"{name!r} was not kept: only values of it were (`keep`)")
        if name in self._reals:
            return frozen(self._reals[name])
        if name not in self._decoded:
            start = 0
            for known, variable in self._space.discrete_variables:
                if known == name:
                    block = self._theta[..., start : start + variable.num_elements]
                    values = variable.decode(block.reshape(*block.shape[:-1], *variable.shape))
                    values.setflags(write=False)
                    self._decoded[name] = values
                    break
                start += variable.num_elements
            else:
                raise KeyError(f"{name!r} is not one of {', '.join(self._space.names)}")
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._space.names if self._is_kept else ())

    def __len__(self) -> int:
        return len(self._space.names) if self._is_kept else 0

    @property
    def _is_kept(self) -> bool:
        return self._theta.shape[2] == self._space.num_dims

    def __repr__(self) -> str:
        chains, draws = self._theta.shape[:2]
        parts = (f"{name}: {(chains, draws, *v.shape)}" for name, v in self._space.variables if name in set(self))
        return f"Draws({', '.join(parts)})"


class Codes:
    """The field `theta`: stored small, handed out as int64, so that sums and squares of draws do not wrap around."""

    def __get__(self, result: Any, owner: type | None = None) -> np.ndarray:
        if result is None:
            raise AttributeError("theta")  # this is how a dataclass learns that the field has no default
        return frozen(np.asarray(result.codes).astype(np.int64))

    def __set__(self, result: Any, theta: Any) -> None:
        result.__dict__["codes"] = theta if isinstance(theta, StoredArray) else np.asarray(theta)


def frozen(values: Any) -> Any:
    """A view that cannot be written to; what lies on disk stays there."""
    if isinstance(values, StoredArray):
        return values
    view = np.asarray(values).view()
    view.setflags(write=False)
    return view
