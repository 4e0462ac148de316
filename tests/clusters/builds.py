"""Builds of small plans for tests of many ranks: they count themselves, wait, fail or die where they are told."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_of
from brimful.clusters.epoch_plans import BuiltPlan
from brimful.clusters.ranks import Waiting
from brimful.plan import Plan, plan_packs

LENGTHS = np.random.default_rng(0).integers(1, 60, 400)
QUICK = Waiting(poll_seconds=0.02, arrive_seconds=20.0, see_seconds=0.3)


class Build:
    """The plan of an epoch: a hundred packs, after ``seconds``; ``fault`` is called before it is there."""

    def __init__(self, directory, seconds=0.0, fault=None, capacity=128):
        self.directory, self.seconds, self.fault, self.capacity = Path(directory), seconds, fault, capacity
        self.epochs = []

    def __call__(self, epoch, progress):
        self.epochs.append(epoch)
        with progress.stage("measure", total=10, unit="rows"):
            for _ in range(10):
                time.sleep(self.seconds / 10)
                progress.advance(1)
            if self.fault is not None:
                self.fault(epoch)
        name = f"plans/{epoch}.arrow"
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        plan_packs(LENGTHS, capacity=self.capacity, epoch=epoch).save(path)
        return BuiltPlan(Plan.open(path), fingerprint_of("plans of a test"), (name,))


def expected(epoch):
    """The fingerprint that every rank must have in an epoch."""
    return plan_packs(LENGTHS, capacity=128, epoch=epoch).fingerprint


def die(_epoch):
    os.kill(os.getpid(), signal.SIGKILL)


def in_threads(*functions):
    """Results of functions that run at the same time, one for each rank; an error is a result."""
    results: list[Any] = [None] * len(functions)

    def run(number):
        try:
            results[number] = functions[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results
