"""`dvi serve`: one process from config to exit status.

Owns process-wide modes, signals and the translation of errors into one line and a status; knows
nothing of what a server is made of.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from dvi.config import DviConfig
from dvi.config.secrets import mask
from dvi.decoding.startup import NotDeterministic
from dvi.modeling.threads import set_thread_modes
from serving.engine_thread import is_one_left
from serving.http_server import PortTaken
from serving.server import Server, running_server, survey
from serving.signals import StopRequested, StopSignals
from serving.state_folder import StateFolderBusy

DONE, FAILED, WRONG = 0, 1, 2
# The decode thread takes the interpreter back within 0.1 ms of a busy HTTP thread: at the default
# 5 ms a step beside Python work takes a hundred times as long.
SWITCH_INTERVAL_S = 1e-4


def set_process_modes() -> None:
    """Modes of the process and this thread; before any tensor is made."""
    set_thread_modes(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # A long prompt is tokenized in the thread that asks, at its priority, not by a pool at ours.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_what_is_loaded() -> None:
    """Take everything that lives now out of the garbage collector's sight; once, when ready.

    A full collection over a loaded model's objects stops every thread for a quarter of a second.
    """
    gc.collect()
    gc.freeze()


def _say(error: BaseException) -> None:
    print(mask(f"dvi: {' '.join(str(error).split())}"), file=sys.stderr, flush=True)


class _Running:
    """The server that a second signal must end without waiting."""

    def __init__(self) -> None:
        self.server: Server | None = None

    def stop_at_once(self) -> None:
        """Leave now. Everything on disk is whole by design."""
        if self.server is not None and self.server.metrics.supervisor is not None:
            self.server.metrics.supervisor.kill()
        os._exit(DONE)


def _run(config: DviConfig, run_dir: Path) -> None:
    running = _Running()
    with StopSignals(running.stop_at_once) as signals:
        plant = survey(config, run_dir)
        set_process_modes()
        with running_server(plant) as server:
            running.server = server
            signals.started()
            keep_what_is_loaded()
            print(server.ready_line(), flush=True)
            signals.wait()
            server.drain(config.serving.drain_timeout_s)


def serve(config: DviConfig, run_dir: Path) -> int:
    """Serve until SIGTERM or Ctrl-C; main thread only. 0 drained, 1 failed, 2 wrong config."""
    status = _served(config, run_dir)
    if is_one_left():
        os._exit(status)
    return status


def _served(config: DviConfig, run_dir: Path) -> int:
    try:
        _run(config, run_dir)
    except StopRequested:
        return DONE
    except (PortTaken, StateFolderBusy, NotDeterministic) as error:
        _say(error)
        return FAILED
    except ValueError as error:
        _say(error)
        return WRONG
    except OSError as error:
        _say(error)
        return FAILED
    return DONE
