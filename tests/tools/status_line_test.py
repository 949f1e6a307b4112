# SPDX-License-Identifier: Apache-2.0
"""Long subcommands show on a terminal what they are doing, and elsewhere nothing but results.

    status_line_test.py COMMAND
"""

import os
import pty
import subprocess
import sys
import unittest

ERASE = "\r\x1b[2K"
STEP = r"step +\d+/\d+"


class StatusLine(unittest.TestCase):
    command = ""
    training = ["train", "--steps", "6", "--model", "mlp:16", "--ranks", "2", "--preset", "circulant"]
    timing = ["bench", "--preset", "circulant", "--ranks", "2", "-b", "4K", "--iters", "2", "-w", "2"]

    def on_terminal(self, arguments):
        terminal, end = pty.openpty()
        process = subprocess.Popen([self.command, *arguments], stdout=end, stderr=end, close_fds=True)
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            shown += part
        os.close(terminal)
        self.assertEqual(process.wait(timeout=60), 0)
        return shown.decode().replace("\r\n", "\n")

    def test_a_terminal_sees_the_steps_and_then_the_results_alone(self):
        shown = self.on_terminal(self.training)
        self.assertIn(ERASE + "  circulant  step ", shown)
        for line in shown.split("\n"):  # what was drawn last on a line is a result
            self.assertNotRegex(line.rpartition(ERASE)[2], STEP, line)
        self.assertIn(ERASE + "  circulant, P = 2, n = 4096" + ERASE, self.on_terminal(self.timing))

    def test_a_pipe_sees_results_only(self):
        for arguments in [self.training, self.timing]:
            ended = subprocess.run([self.command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, check=True, timeout=60)
            self.assertEqual(ended.stderr, "")
            self.assertNotIn("\x1b", ended.stdout)
            self.assertNotRegex(ended.stdout, STEP)


if __name__ == "__main__":
    StatusLine.command = os.path.abspath(sys.argv.pop(1))
    unittest.main()
