"""The lowest versions of the runtime dependencies that pyproject.toml admits, as arguments for pip."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
lowest = [re.fullmatch(r"([\w-]+)>=([\d.]+)(,.*)?", line) for line in project["dependencies"]]
sys.stdout.write(" ".join(f"{found[1]}=={found[2]}" for found in lowest if found) + "\n")
