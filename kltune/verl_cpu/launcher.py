"""Stands in for Ray's ``setup_worker.py``: asks the nursery for a worker that is already warm.

Ray runs this file, with a worker's whole command line, once per worker. It imports nothing that
costs time. Where no nursery takes the request, the worker starts as Ray would have started it.
"""

import importlib.util
import json
import os
import socket
import sys


def main() -> int:
    """Return the exit code of the worker, once it has ended."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect("\0" + os.environ["KLTUNE_NURSERY"])
        birth = {"argv": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
        socket.send_fds(connection, [b" "], [0, 1, 2])
        connection.sendall(json.dumps(birth).encode())
        connection.shutdown(socket.SHUT_WR)
        taken = connection.recv(1)
    except (KeyError, OSError):
        taken = b""
    if not taken:
        start_as_ray_would()
    code = connection.recv(1)  # nothing when the worker was killed
    return code[0] if code else 1


def start_as_ray_would() -> None:
    ray = importlib.util.find_spec("ray").submodule_search_locations[0]  # type: ignore[union-attr, index]
    script = os.path.join(ray, "_private", "workers", "setup_worker.py")  # noqa: PTH118
    os.execv(sys.executable, [sys.executable, script, *sys.argv[1:]])  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
