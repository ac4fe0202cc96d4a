"""The socket that the service listens on."""

import os
import socket

from broker.exits import Exit, fail


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on, opened before starting parts that would have to be stopped."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # No other process can listen on the port from here on.
            listener.listen(2048)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        # UnicodeError: a name with an empty or very long part.
        where = f"{host}:{port}"
        why = getattr(error, "strerror", None) or error
        fail(Exit.ADDRESS, f"cannot listen on {where}: {why}; give another --host or --port")
    return listener
