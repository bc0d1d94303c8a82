"""Several processes that share one run: who they are, and the few bytes that they exchange.

Every process runs the same script and draws its own range of chains on its own devices. JAX's coordination service
carries what they tell each other: what warm-up found, once, from process 0 to all, and at the end who is done. Nothing
is exchanged while chains run. The service also sees to it that a process that dies takes the others with it
(`HEARTBEAT`): what they have stored by then is resumed from.

The devices of a process stay its own: the service is started beside the backend, not below it, so it does not matter
whether a script has made arrays before it samples.
"""

import contextlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src import distributed  # the coordination service has no public door once a backend is up

from terrazzo.errors import ConfigurationError, ProcessError

SWITCH = "TERRAZZO_PROCESSES"
OWN = ("TERRAZZO_COORDINATOR", "TERRAZZO_NUM_PROCESSES", "TERRAZZO_PROCESS_ID")
EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
TORCH_LIKE = ("MASTER_ADDR", "WORLD_SIZE", "RANK")  # what operators of Kubernetes set, with MASTER_PORT
DEFAULT_PORT = "29500"  # where MASTER_PORT is not set
DETECTED = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")  # JAX finds the coordinator of these itself

HEARTBEAT = 15  # seconds without a sign of life after which a process counts as dead; others end within 30
WAIT = 1_000  # milliseconds of one wait for a message; between two of them a process can be interrupted
PART = 2**20  # bytes of one message of the service


@dataclass
class Team:
    """The processes of a run. One that is alone is a team of one, and says nothing to anybody.

    Attributes:
        rank: The number of this process.
        size: How many there are.

    >>> Team().part(8)
    range(0, 8)
    >>> Team(rank=1, size=3).part(8)
    range(3, 6)
    """

    rank: int = 0
    size: int = 1
    client: Any = field(default=None, repr=False)
    _round: int = field(default=0, repr=False)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, num_chains: int) -> range:
        """The chains of this process: consecutive ones, as many as those of any other, or one more."""
        if num_chains < self.size:
            raise ConfigurationError(
                "chains", f"are {num_chains} for {self.size} processes", "ask for at least one chain a process"
            )
        each, more = divmod(num_chains, self.size)
        first = self.rank * each + min(self.rank, more)
        return range(first, first + each + (self.rank < more))

    def next_round(self) -> None:
        """Begins a run: messages of one run are never taken for those of another, since all count alike."""
        self._round += 1

    def send(self, name: str, data: bytes) -> None:
        """Leaves a message under a name."""
        key = self._key(name, self.rank)
        parts = [data[i : i + PART] for i in range(0, len(data), PART)]
        for n, part in enumerate(parts):
            self.client.key_value_set_bytes(f"{key}/{n}", part)
        self.client.key_value_set_bytes(f"{key}/count", str(len(parts)).encode())

    def receive(self, name: str, rank: int = 0, check: Callable[[], None] = lambda: None) -> bytes:
        """The message of a process; waits for it as long as that process lives.

        Args:
            name: What the message is called.
            rank: Who sends it.
            check: Called every few seconds: it may raise, to stop waiting.
        """
        key = self._key(name, rank)
        count = int(self._wait_for(f"{key}/count", check))
        return b"".join(self._wait_for(f"{key}/{n}", check) for n in range(count))

    def _wait_for(self, key: str, check: Callable[[], None]) -> bytes:
        while True:
            try:
                return self.client.blocking_key_value_get_bytes(key, WAIT)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise ProcessError(
                        "processes", f"the coordinator cannot be reached ({_line(error)})",
                        "run again with the same checkpoint: it goes on from there",
                    ) from None  # fmt: skip
            check()

    def _key(self, name: str, rank: int) -> str:
        return f"terrazzo/{self._round}/{name}/{rank}"

    def tell(self, name: str, **what: Any) -> None:
        """`send` of a record."""
        self.send(name, json.dumps(what).encode())

    def hear(self, name: str, rank: int = 0, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """`receive` of a record; one that reports an error raises it."""
        found = json.loads(self.receive(name, rank, check))
        if "error" in found:
            raise ProcessError(
                "processes", f"process {rank} stopped: {found['error']}", "see what it printed; then run again"
            )
        return found


_teams: list[Team] = []  # the one this process belongs to: JAX's service, too, is one a process


def join_team() -> Team:
    """The team that the environment describes; the service is started when it is first asked for."""
    if not _teams:
        _teams.append(_started(os.environ))
    return _teams[0]


def _started(environment: Mapping[str, str]) -> Team:
    if environment.get(SWITCH, "").lower() in ("off", "0", "no", "false"):
        return Team()
    state = distributed.global_state
    if state.client is None:
        described = described_by(environment)
        if described is None:
            return Team()
        jax.local_devices()  # the backend first: its devices remain those of this process
        limits: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT, "shutdown_timeout_seconds": HEARTBEAT}
        known = inspect.signature(state.initialize).parameters
        try:
            state.initialize(**described, **{name: value for name, value in limits.items() if name in known})
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(
                "processes", f"the coordinator {described.get('coordinator_address', '')} was not found"
                f" ({_line(error)})", f"check the environment, or set {SWITCH}=off to sample in one process",
            ) from None  # fmt: skip
    if state.num_processes == 1:
        return Team()
    return Team(rank=state.process_id, size=state.num_processes, client=state.client)


def described_by(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What the environment says of several processes, as arguments of `jax.distributed.initialize`; None for one.

    >>> described_by({"WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "node0"})
    {'coordinator_address': 'node0:29500', 'num_processes': 4, 'process_id': 1}
    >>> described_by({"SLURM_STEP_NUM_TASKS": "1"}) is None
    True
    """
    for address, count, rank in (OWN, EXPLICIT, TORCH_LIKE):
        if count not in environment or address not in environment:
            continue
        num_processes = _number(environment, count, 1)
        if num_processes == 1:
            return None
        place = environment[address]
        if address == TORCH_LIKE[0]:
            place = f"{place}:{environment.get('MASTER_PORT', DEFAULT_PORT)}"
        process_id = _number(environment, rank, 0)
        if process_id >= num_processes:
            raise ConfigurationError(rank, f"is {process_id} of {num_processes} processes", "number them from 0")
        return {"coordinator_address": place, "num_processes": num_processes, "process_id": process_id}
    if any(name in environment and _number(environment, name, 1) > 1 for name in DETECTED):
        return {}
    return None


def _number(environment: Mapping[str, str], name: str, low: int) -> int:
    text = environment.get(name, "")
    if not text.isdecimal() or int(text) < low:
        raise ConfigurationError(name, f"is {text!r}, not a whole number from {low}", "set it, or unset its group")
    return int(text)


@contextlib.contextmanager
def telling_errors(team: Team, name: str) -> Iterator[None]:
    """An error in the block is told to whoever waits for the message `name` of this process."""
    try:
        yield
    except BaseException as error:
        if team.size > 1 and not isinstance(error, ProcessError):
            with contextlib.suppress(Exception):
                team.tell(name, error=_line(error) or type(error).__name__)
        raise


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
