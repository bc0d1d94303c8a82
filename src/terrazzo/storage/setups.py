"""What warm-up leaves behind, as arrays and JSON: stored in a checkpoint, and with a result as its plan."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from terrazzo.storage.files import jsonable

GROUPS = ("parameters", "history", "states", "plan")


class Setup(NamedTuple):
    """What warm-up left behind.

    Attributes:
        header: Anything JSON can hold.
        parameters: The frozen parameters of the sampler, by name.
        history: Training curves, by name.
        transport: The stored transport and its description, or None.
        states: The leaves of the chains' states after warm-up.
        plan: What the pipeline left, as arrays by name; empty without one.
    """

    header: dict[str, Any]
    parameters: dict[str, np.ndarray]
    history: dict[str, np.ndarray]
    transport: tuple[bytes, dict[str, Any]] | None
    states: list[np.ndarray]
    plan: dict[str, np.ndarray]

    def __repr__(self) -> str:
        sampler = self.header.get("plan", {}).get("sampler", "a sampler")
        return f"Setup({sampler}, thin {self.header.get('thin')})"

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, bytes]]:
        """A header, named arrays and named bytes, as files hold them."""
        arrays = {f"parameters/{k}": np.asarray(v) for k, v in self.parameters.items()}
        arrays |= {f"history/{k}": np.asarray(v) for k, v in self.history.items()}
        arrays |= {f"states/{i}": v for i, v in enumerate(self.states)}
        arrays |= {f"plan/{k}": np.asarray(v) for k, v in self.plan.items()}
        blobs = {} if self.transport is None else {"transport": self.transport[0]}
        transport = None if self.transport is None else self.transport[1]
        return {"header": jsonable(self.header), "transport": transport}, arrays, blobs

    @classmethod
    def from_parts(
        cls, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], blobs: Mapping[str, bytes]
    ) -> "Setup":
        """What `to_parts` took apart; `KeyError` or `TypeError` if something is missing."""
        groups: dict[str, dict[str, np.ndarray]] = {name: {} for name in GROUPS}
        for name, array in arrays.items():
            group, _, rest = name.partition("/")
            groups[group][rest] = array
        transport = None if header["transport"] is None else (blobs["transport"], header["transport"])
        states = [groups["states"][str(i)] for i in range(len(groups["states"]))]
        return cls(dict(header["header"]), groups["parameters"], groups["history"], transport, states, groups["plan"])
