"""How long torch's threads wait for their next piece of work before they sleep."""

from __future__ import annotations

import os

# Read by the library behind torch's threads (GNU OpenMP) when it is loaded; elsewhere it means nothing.
BRIEFLY = {"GOMP_SPINCOUNT": "10000"}


def wait_briefly() -> None:
    """Let idle threads sleep after about a tenth of a millisecond; call it before torch is imported.

    By default they keep a core busy for milliseconds after each operation, in case another follows. That
    core then lacks for other work: pieces side by side (:mod:`wdae.runtime.cores`), or other
    programs. Training on two cores gains about a sixth. What the user has set stays.
    """
    for name, value in BRIEFLY.items():
        os.environ.setdefault(name, value)
