# SPDX-License-Identifier: Apache-2.0
"""What the examples share.

options.py      the command line they have in common
world.py        the process group, the device, loading data once
recipes.py      "circulant:density=0.05" -> how gradients are exchanged, and what that moves
exchange.py     DDP with a recipe; bytes
compare.py      a Task trained once per recipe, on the same samples and from the same weights
report.py       the table, the JSON file
plot.py         held-out loss over bytes
data/           readers of public formats, and stand-ins for where there is no data
"""
