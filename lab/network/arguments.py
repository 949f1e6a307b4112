# SPDX-License-Identifier: Apache-2.0
"""The command line of slow_network.py: what may be said, checked before anything is made.

Units as tc writes them: rates in kbit, mbit, gbit per second (powers of ten) or `unlimited`, times
in us, ms, s.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from network import methods

T = TypeVar("T")
RATE_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
COUNT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Rate:
    """A rate as it was written, and its bits per second (None: no limit)."""

    name: str
    bits: float | None


def measured(text: str, units: Mapping[str, float], rule: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", text)
    if not found or found.group(2) not in units:
        raise argparse.ArgumentTypeError(f"{text!r} is not {rule}")
    return float(found.group(1)) * units[found.group(2)]


def rate(text: str) -> Rate:
    if text == "unlimited":
        return Rate(text, None)
    bits = measured(text, RATE_UNITS, "a rate (100mbit, 1gbit, unlimited)")
    if not 1e6 <= bits <= 100e9:
        raise argparse.ArgumentTypeError(f"rate {text} is not between 1mbit and 100gbit")
    return Rate(text, bits)


def delay(text: str) -> float:
    seconds = 0.0 if text == "0" else measured(text, TIME_UNITS, "a time (0.1ms, 50us, 0)")
    if seconds != 0 and not 1e-6 <= seconds <= 1:
        raise argparse.ArgumentTypeError(f"delay {text} is neither 0 nor between 1us and 1s")
    return seconds


def parameters(text: str) -> int:
    count = int(measured(text, COUNT_UNITS, "a number of parameters (10M)"))
    if not 1000 <= count <= 10**9:
        raise argparse.ArgumentTypeError(f"parameters {text} is not between 1K and 1G")
    return count


def method(text: str) -> str:
    try:
        return methods.check_method(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def density(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"density {text!r} is not a number in (0, 1]")
    return value


def several(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A list with commas; nothing twice."""

    def parse(text: str) -> list[T]:
        words = text.split(",")
        if len(set(words)) < len(words):
            raise argparse.ArgumentTypeError(f"{text!r} names something twice")
        return [one(word) for word in words]

    return parse


def within(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add(
        "--rate",
        type=several(rate),
        default="100mbit,1gbit",
        help="of every link, both ways [%(default)s]",
    )
    add("--delay", type=delay, default="0", help="from rank to rank, added by a relay [%(default)s]")
    add("--methods", type=several(method), default=methods.DEFAULT, help="[%(default)s]")
    add("--ranks", type=within(2, 64), default="4", help="[%(default)s]")
    add("--parameters", type=parameters, default="10M", help="at least, of the model [%(default)s]")
    add(
        "--batch", type=within(1, 4096), default="4", help="samples per rank and step [%(default)s]"
    )
    add("--density", type=density, default="0.01", help="of oktopk's presets [%(default)s]")
    add(
        "--codec",
        default="elias_fano+bf16",
        help="of oktopk's presets; `none` for the library's own [%(default)s]",
    )
    add(
        "--steps",
        type=within(1, 100000),
        default="30",
        help="that are timed, at most [%(default)s]",
    )
    add(
        "--seconds",
        type=within(1, 3600),
        default="40",
        help="for the timed steps, but at least 5, and for the warm-up [%(default)s]",
    )
    add(
        "--warmup",
        type=within(6, 1000),
        default="200",
        help="steps before: 6, then while --seconds last [%(default)s]",
    )
    add(
        "--timeout",
        type=within(10, 7200),
        default="600",
        help="seconds for one method at one rate [%(default)s]",
    )
    add("--json", metavar="FILE", help="writes all that was measured, after every method")
    add("--plot", metavar="FILE.png", help="writes a picture (needs matplotlib)")
    add("--write-docs", action="store_true", help="writes the table into docs/slow_network.md")
    add("--read", metavar="FILE", help="measures nothing: shows what --json wrote")
    return made
