"""Imported by every interpreter that has this directory in PYTHONPATH: appends the times of audit events to a file.

`bench/start.py` makes its waterfall from them. The clock is the same for all processes of the machine.
"""

import os
import sys
import time

_EVENTS = {"subprocess.Popen", "sqlite3.connect", "socket.bind", "socket.connect"}
_path = os.environ.get("KEDGE_BENCH_TRACE", "")

if _path:
    _file = os.open(_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _note(event: str, detail: str = "") -> None:
        os.write(_file, f"{os.getpid()} {time.monotonic_ns()} {event} {detail}\n".encode())

    def _note_first_answer() -> None:
        """Note the first bytes that the server's HTTP client receives."""
        stream = sys.modules["kedge.http.connection"].Stream
        receive = stream.data_received

        def data_received(self: object, data: bytes) -> None:
            _note("answer")
            stream.data_received = receive
            receive(self, data)

        stream.data_received = data_received

    def _hook(event: str, args: tuple[object, ...]) -> None:
        if event in _EVENTS:
            _note(event, repr(args[1]) if event.startswith("socket") else "")
            if event == "socket.connect" and "kedge.agent.agent" in sys.modules:
                _note_first_answer()
        elif event == "import" and str(args[0]) in ("kedge.agent.lazy_agent", "kedge.agent.agent"):
            _note("import", str(args[0]))

    _note("interpreter", " ".join(sys.orig_argv[-2:]))
    sys.addaudithook(_hook)
