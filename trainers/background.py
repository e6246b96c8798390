"""Everything the background training stands on, opened and closed.

Owns target, store, registry, tracker and lock of one trainer process; does not know how to train,
nor what the process is told by signals.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from contextlib import ExitStack

import torch

from dvi.config import DviConfig
from dvi.config.home import adapters_dir, replay_url, shared_dir, state_dir
from dvi.config.io import without_secrets
from dvi.drafting.ground import draft_fingerprint
from dvi.launch.logs import LineFormatter, literal_secrets
from dvi.modeling.loading import load_target
from dvi.modeling.resolve import resolve_model_path
from dvi.modeling.target import TargetModel
from dvi.modeling.threads import set_thread_modes
from dvi.registry import Registry
from dvi.replay import LeaseLost, ReplayStore, ReplayStoreError, is_there, open_store
from dvi.tracking import make_tracker
from trainers.build import Ground, build_training
from trainers.control import CONTROL_FILE, CpuBudget, Pace, read_control
from trainers.follow import Follower
from trainers.lease import sole_of_all
from trainers.payback import Payback
from trainers.process import IDLE_CLASS, sole_trainer
from trainers.status import StatusFile
from trainers.watch import Outlets, Watch

logger = logging.getLogger("trainers")

TRAINER_DIR = "trainer"
STATUS_FILE = "status.json"
LOCK_FILE = "lock"
ID_BITS = 48  # a manifest keeps the id as a float


def train_in_background(config: DviConfig, stop: threading.Event, priority: str) -> int:
    """Train until told to stop; the exit status.

    1 where memory ran out or the folder cannot be used now (the last checkpoint is whole, and the
    server starts another trainer from it after a pause) or another machine took over (started
    again, it stands by). 2 where config, model or checkpoint do not fit.
    """
    start_logging(config)
    set_thread_modes(config.trainer.num_threads)
    logger.info("trainer started, priority %s", priority)
    try:
        serve_training(config, stop, priority)
    except ValueError as error:
        logger.error("%s", str(error).splitlines()[0])
        return 2
    except OSError as error:
        logger.error("%s: training goes on after a restart", error)
        return 1
    except LeaseLost as error:
        logger.warning("%s", error)
        return 1
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        logger.error("out of memory: training goes on from the last checkpoint after a restart")
        return 1
    return 0


def is_out_of_memory(error: Exception) -> bool:
    """Python's own, an accelerator's, or that of torch's CPU allocator, which has no type."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error)


def serve_training(config: DviConfig, stop: threading.Event, priority: str) -> None:
    """Hold the state folder, open everything, follow the store, close everything."""
    folder = state_dir(config) / TRAINER_DIR
    with ExitStack() as stack:
        if not stack.enter_context(sole_trainer(folder / LOCK_FILE, stop, logger.info)):
            return
        if config.replay.log_content is False:
            logger.info("replay.log_content=false: there is nothing to learn from")
            stop.wait()
            return
        store = wait_for_store(config, stop)
        if store is None:
            return
        stack.enter_context(store)
        may_write = stack.enter_context(sole_of_all(config, store, stop))
        if may_write is None:
            return
        target, fingerprint = open_target(config)
        registry = Registry(adapters_dir(config), config.registry.keep_versions)
        shared = shared_dir(config) / TRAINER_DIR
        ground = Ground(target, fingerprint, store, registry, shared, may_write=may_write)
        training = build_training(config, ground)
        for path in training.resume(secrets.randbits(ID_BITS)):
            logger.warning("checkpoint %s is damaged: passed over", path.name)
        tracker = stack.enter_context(
            make_tracker(config.tracking, state_dir(config), "train", without_secrets(config))
        )
        outlets = Outlets(StatusFile(folder / STATUS_FILE), tracker, registry)
        logger.info("trainer ready at step %d", training.parts.learner.num_steps)
        watch, interval_s = Watch(training, outlets), config.trainer.poll_interval_s
        payback = make_payback(config, priority)
        Follower(training, watch, interval_s, make_pace(config), payback).run(stop)
        logger.info("trainer stopped at step %d", training.parts.learner.num_steps)


def make_pace(config: DviConfig) -> Pace:
    """The server's wishes and the cap on CPU time."""
    path = shared_dir(config) / TRAINER_DIR / CONTROL_FILE
    share, cores = config.trainer.max_cpu_share, config.trainer.num_threads
    budget = CpuBudget(share * cores, time.monotonic, time.process_time)
    return Pace(lambda: read_control(path), budget.pause_s if share < 1 else float)


def make_payback(config: DviConfig, priority: str) -> Payback:
    """At the lowest priority nothing has to be earned back."""
    is_free = priority == IDLE_CLASS
    return Payback(config.trainer.payback_s, time.process_time, is_free=is_free)


def open_target(config: DviConfig) -> tuple[TargetModel, str]:
    """The shallow part of the target as the server loads it, and the base's fingerprint."""
    drafter = config.drafter
    path = resolve_model_path(config.model)
    base = draft_fingerprint(path, config)
    target = load_target(
        path,
        config.model,
        drafter.exit_layer,
        deterministic=False,  # canonical forwards cost time, and a gradient is no answer
        layers="shallow",
        max_context_len=config.serving.max_context_len,
        block_layer=drafter.block_layer,
    )
    return target, base


def wait_for_store(config: DviConfig, stop: threading.Event) -> ReplayStore | None:
    """The replay store once the server has made it; None when told to stop before."""
    url, said = replay_url(config), ""
    while not stop.is_set():
        try:
            if is_there(url):
                return open_store(url, config.replay)
        except ReplayStoreError as error:
            if str(error) != said:
                said = str(error)
                logger.warning("waiting: %s", said)
        stop.wait(config.trainer.poll_interval_s)
    return None


def start_logging(config: DviConfig) -> None:
    """One line a message on stderr, as the server writes them, secrets masked."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(config.run.log_format, literal_secrets(config)))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logger.setLevel(logging.INFO)
