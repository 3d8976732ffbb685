"""The Ray actors: coordinator, node server, reader, host feed. Thin shells around pipeline.plan."""

import os
import sys
from pathlib import Path

# Ray decides when it is imported whether it shows a token to clusters, and a cluster that it starts
# asks for one. So a process that has a token is told to show it; where none is asked for it is
# ignored. An explicit RAY_AUTH_MODE stands.
if "ray" not in sys.modules and (
    os.environ.get("RAY_AUTH_TOKEN")
    or os.environ.get("RAY_AUTH_TOKEN_PATH")
    or (Path.home() / ".ray" / "auth_token").exists()
):
    os.environ.setdefault("RAY_AUTH_MODE", "token")
