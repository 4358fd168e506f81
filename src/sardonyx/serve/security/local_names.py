"""Names that only this machine has, for servers that trust every client of the machine.

A page of another site may lead its own name to the loopback (DNS rebinding). The browser then takes the server for the
site, and neither its rules nor the field ``Origin`` stop the page: only the name in the request tells.
"""

from __future__ import annotations

import functools
import ipaddress
import socket


@functools.lru_cache(maxsize=256)
def is_local_name(host: str) -> bool:
    """Return False if the field ``Host`` has a name that others can give to this machine.

    Addresses and names without a dot are no names of sites.

    Args:
        host: The field, with or without a port.
    """
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    name = name.removesuffix(".")
    if "." not in name or name.endswith(".localhost") or name == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
