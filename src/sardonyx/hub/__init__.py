"""Models from hubs: found by name, downloaded with a digest, and pinned by a lock file."""

from sardonyx.hub.get import Obtained, get, search, stored
from sardonyx.hub.lock import Lock
from sardonyx.hub.sources import Entry

__all__ = ["Entry", "Lock", "Obtained", "get", "search", "stored"]
