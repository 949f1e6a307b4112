# SPDX-License-Identifier: Apache-2.0
"""Code that the examples share, in the order of its use.

    main.py         the frame: options, process group, data, a run per recipe, the report
    options.py      the command line they have in common
    recipes.py      "circulant:density=0.05": one way to train
    world.py        the process group, the device, loading data once
    data/           readers of public formats, and stand-ins for where there is no data
    classify.py     image classification as a Task
    train.py        a Task trained with a recipe, from the same weights on the same samples; the optimiser
    order.py        which samples those are
    exchange.py     how gradients are exchanged, and the bytes that takes
    report.py       the table, the JSON file
    plot.py         held-out loss over bytes

An example is a Task and its own options; nothing here knows a single one of them.
"""
