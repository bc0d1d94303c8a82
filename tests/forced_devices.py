"""Programs on so many host devices, each in a process of its own: JAX counts its devices once."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path


def on_devices(count, *arguments, program):
    """What a program writes to its standard output, as JSON."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=environment, capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
