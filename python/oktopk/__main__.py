# SPDX-License-Identifier: Apache-2.0
"""`python -m oktopk` is the command `oktopk`."""

from oktopk._command import main

main()
