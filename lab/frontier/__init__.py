# SPDX-License-Identifier: Apache-2.0
"""Learning per byte: every method on the same model, data, steps and seeds. `python -m frontier --help`, in lab/."""
