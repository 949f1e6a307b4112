# SPDX-License-Identifier: Apache-2.0
"""The arbiter of an elastic job as a process of its own, and the wire to it: a relay that breaks connections, and lets
no new ones through for a while."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path


class Relay:
    """Carries connections of the members to the arbiter. One thread for each direction."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._is_cut:
                    raise OSError
                far = socket.create_connection(("127.0.0.1", self._port), 5)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def break_all(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def cut(self, seconds: float) -> None:
        self._is_cut = True
        self.break_all()
        time.sleep(seconds)
        self._is_cut = False

    def close(self) -> None:
        self._listener.close()
        self.break_all()


class Arbiter:
    """`oktopk run --serve-only`, which can be killed, stopped and started anew at its address."""

    def __init__(self, oktopk: str, folder: Path, grace: float, has_state: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.secret_file = folder / "secret"
        self.secret_file.write_text(os.urandom(16).hex() + "\n")
        self.secret_file.chmod(0o600)
        self.text: list[str] = []
        self._state = ["--state", str(folder / "state")] if has_state else []
        self._command = [oktopk, "run", "--serve-only", "--secret-file", str(self.secret_file), "--grace", str(grace)]
        self.port = 0
        self.start()
        self.relay = Relay(self.port)

    def start(self) -> None:
        listen = ["--rendezvous", f"127.0.0.1:{self.port}", *self._state]
        self._process = subprocess.Popen(
            [*self._command, *listen], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        while said and "listens at" not in said:
            self.text.append(said.rstrip())
            said = self._process.stdout.readline()
        if not said:
            raise RuntimeError("the arbiter does not start: " + "; ".join(self.text))
        self.port = int(said.rsplit(":", 1)[1])
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.text.extend("arbiter: " + line.rstrip() for line in process.stdout)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        self.relay.close()
