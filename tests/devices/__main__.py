"""``python -m devices [name ...]``: run every public function on a GPU, and loops at two lengths; JSON, one a line."""

import dataclasses
import json
import sys
import time

from .loops import LOOPS, copied
from .moving import names, run
from .pretended import setup

setup()  # before the first backward pass of the process, at which torch counts the devices
for name in sys.argv[1:] or [*LOOPS, *names()]:
    began = time.monotonic()
    found = {"name": name, "copies": copied(name)} if name in LOOPS else dataclasses.asdict(run(name))
    print(json.dumps(found | {"seconds": round(time.monotonic() - began, 2)}), flush=True)
