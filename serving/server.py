"""One server put together: socket, state folder, model, threads and the trainer process.

Owns the order in which parts start and end; each part knows its own work. Use ``running_server``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import dvi
from dvi.config import DviConfig
from dvi.config.cores import decode_threads
from dvi.config.home import adapters_dir, replay_url, shared_dir, state_dir
from dvi.config.io import dump_config, without_secrets
from dvi.config.secrets import mask
from dvi.decoding.startup import Outlets
from dvi.drafting import DRAFTERS
from dvi.drafting.ground import learned_kind
from dvi.modeling.resolve import resolve_model_path
from dvi.registry import Registry
from dvi.replay import check_url
from dvi.tracking import make_tracker
from serving.app import make_app
from serving.auth import AccessRules, access_rules, check_exposure, with_scopes
from serving.canary import Canary
from serving.dashboard import Dashboard, add_dashboard_routes
from serving.engine_thread import EngineThread
from serving.histograms import LatencyHistograms
from serving.history import History
from serving.http_server import HttpServer, bind, url_of
from serving.metrics_source import MetricsSource
from serving.owed import OwedRollbacks
from serving.prometheus import BuildInfo
from serving.recollection import Recollection
from serving.registry_desk import RegistryDesk
from serving.runtime import Privacy, Runtime, build_runtime, model_name
from serving.sentinel import Links, Sentinel
from serving.service import Service
from serving.signs import SignsOfLife
from serving.state_folder import locked_state_folder, user_key
from serving.supervisor import Supervisor, trainer_command, trainer_environment
from serving.trace_log import TraceLog
from serving.tracking_loop import TrackingLoop
from serving.trainer_control import TrainerControl
from serving.trainer_status import TrainerStatusReader
from serving.watcher import AdapterWatcher

logger = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 2.0  # a cancelled request is freed within one round


@dataclass(frozen=True, slots=True)
class Plant:
    """What is decided before anything starts."""

    config: DviConfig
    run_dir: Path
    state: Path
    model_path: Path
    rules: AccessRules
    keep_content: bool

    @property
    def resolved(self) -> DviConfig:
        """The config with paths that mean the same to any process, and with both scopes."""
        model = replace(self.config.model, path=str(self.model_path))
        config = replace(self.config, state_dir=str(self.state), model=model)
        return with_scopes(config, self.rules)

    @property
    def kept(self) -> str:
        """What becomes of prompts and answers, where, and how to change it; one line."""
        if not self.keep_content:
            return "no prompt or answer is kept, so the draft does not learn"
        replay = self.config.replay
        return (
            f"prompts and answers are kept for training in {mask(replay_url(self.config))} "
            f"(at most {replay.max_bytes / 2**20:.0f} MiB, {replay.max_age_days:g} days; "
            "off with replay.log_content=false)"
        )


@dataclass
class Server:
    """A running server, as the main thread sees it."""

    plant: Plant
    url: str
    service: Service
    metrics: MetricsSource
    http: HttpServer

    @property
    def runtime(self) -> Runtime:
        """The decode side; there once the server is ready."""
        assert self.metrics.runtime is not None
        return self.metrics.runtime

    def ready_line(self) -> str:
        """URL, model, adapter version, and where content is kept: the one line of stdout."""
        return (
            f"dvi ready: {self.url} | model {self.runtime.model.name} | "
            f"adapter version {self.runtime.slot.adapter_version} | {self.plant.kept}"
        )

    def drain(self, timeout_s: float) -> None:
        """Let nobody in, wait for who is there, cancel the rest; the HTTP side ends with it."""
        self.service.draining = True
        if self.metrics.supervisor is not None:
            self.metrics.supervisor.ask_to_stop()
        self._wait_idle(timeout_s)
        self.service.cancel_all()
        self._wait_idle(CANCEL_TIMEOUT_S)
        self.http.close()

    def _wait_idle(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self.service.in_flight and time.monotonic() < deadline_s:
            time.sleep(0.02)


def survey(config: DviConfig, run_dir: Path) -> Plant:
    """Check access, the store's URL and find the model. ValueError: one line for the user."""
    rules = access_rules(config.serving)
    keep_content = check_exposure(config, rules)
    if keep_content:
        check_url(replay_url(config))
    model_path = resolve_model_path(config.model)
    return Plant(config, run_dir, state_dir(config), model_path, rules, keep_content)


def learns(plant: Plant) -> bool:
    """Whether a trainer process belongs to this server."""
    has_branch = DRAFTERS[plant.config.drafter.kind].branch is not None
    return plant.config.trainer.enabled and plant.keep_content and has_branch


def _metrics_source(plant: Plant, service: Service) -> MetricsSource:
    config = plant.config
    return MetricsSource(
        build=BuildInfo(
            dvi.__version__, model_name(config), config.drafter.kind, plant.model_path.name
        ),
        max_draft_len=config.decoding.max_draft_len,
        counts=service.counts,
        histograms=LatencyHistograms(),
        trainer=TrainerStatusReader(plant.state / "trainer" / "status.json"),
        vllm_model=model_name(config) if config.serving.vllm_metric_names else None,
    )


def _start_supervisor(plant: Plant, status: TrainerStatusReader) -> Supervisor:
    """The trainer reads the config from a file; its paths do not depend on this process."""
    path = plant.run_dir / "trainer.json"
    dump_config(plant.resolved, path)
    environment = trainer_environment(plant.config.trainer.num_threads)
    return Supervisor(trainer_command(path), environment, SignsOfLife(status.last_written))


def trainer_control(plant: Plant) -> TrainerControl:
    """The file that the trainer looks at, whichever machine it runs on."""
    return TrainerControl(shared_dir(plant.config) / "trainer" / "control.json")


def _canary(
    plant: Plant, runtime: Runtime, registry: Registry, owed: OwedRollbacks
) -> Canary | None:
    """Trials of new versions; None where they are off, or the drafter's versions take no turns."""
    drift = plant.config.drift
    if not drift.canary_share or not drift.guard_confidence:
        return None
    if not DRAFTERS[learned_kind(plant.config.drafter)].takes_turns:
        return None
    return Canary(runtime.slot, runtime.engine.parts.live.trial, registry, owed, drift)


def _start_learning(stack: ExitStack, plant: Plant, metrics: MetricsSource) -> AdapterWatcher:
    """Watcher, trainer and curves. The watcher loads the version in service before it returns."""
    assert metrics.runtime is not None
    runtime = metrics.runtime
    registry = Registry(adapters_dir(plant.config), plant.config.registry.keep_versions)
    owed = metrics.owed = OwedRollbacks(registry)
    canary = metrics.canary = _canary(plant, runtime, registry, owed)
    watcher = AdapterWatcher(
        registry,
        runtime.drafter,
        runtime.slot,
        plant.config.registry.poll_interval_s,
        canary,
        passed_over=owed.versions,
    )
    if DRAFTERS[plant.config.drafter.kind].branch is not None:
        watcher.load_first()
        stack.enter_context(watcher)
    metrics.watcher = watcher
    if learns(plant):
        metrics.supervisor = stack.enter_context(_start_supervisor(plant, metrics.trainer))
    elif plant.config.trainer.enabled:
        logger.info("the trainer stands still: nothing is kept to learn from, or nothing learns")
    assert metrics.tracker is not None
    loop = TrackingLoop(
        metrics.tracker, metrics.snapshot, registry.folder, plant.config.tracking.interval_s
    )
    stack.enter_context(loop)
    links = Links(
        live=runtime.engine.parts.live,
        registry=registry,
        owed=owed,
        trainer=metrics.trainer.read,
        look_again=watcher.wake,
        drifted=trainer_control(plant).drifted,
        told=loop.log_drift,
        canary=canary,
    )
    metrics.sentinel = stack.enter_context(Sentinel(plant.config.drift, links))
    return watcher


@contextmanager
def running_server(plant: Plant) -> Iterator[Server]:
    """Start everything; yield when the model answers; end everything in the opposite order.

    Raises PortTaken, StateFolderBusy, ValueError (NotDeterministic too), OSError: each one line.
    """
    config = plant.config
    service = Service(config.serving)
    metrics = _metrics_source(plant, service)
    desks: list[RegistryDesk] = []
    with ExitStack() as stack:
        listener = bind(config.serving.host, config.serving.port)
        stack.callback(listener.close)
        stack.enter_context(locked_state_folder(plant.state))
        app = make_app(service, plant.rules, metrics.text, lambda: desks[0])
        history = stack.enter_context(History(metrics.snapshot))
        add_dashboard_routes(app, Dashboard(metrics, history, plant.kept))
        http = stack.enter_context(HttpServer(app, listener))
        server = Server(plant, url_of(listener), service, metrics, http)
        metrics.traces = stack.enter_context(
            TraceLog(replay_url(config), config.replay, keep_content=plant.keep_content)
        )
        metrics.tracker = stack.enter_context(
            make_tracker(config.tracking, plant.state, "serve", without_secrets(config))
        )
        privacy = Privacy(
            user_key(shared_dir(config), earlier=plant.state),
            plant.keep_content,
            has_tenants=len(plant.rules.api_keys) > 1,
        )
        outlets = Outlets(metrics.traces.offer, metrics.histograms)
        decode = stack.enter_context(EngineThread(decode_threads(config.model)))
        runtime = decode.call(
            lambda: build_runtime(plant.resolved, model_name(config), privacy, outlets)
        )
        metrics.runtime = runtime
        scope = "" if plant.resolved.drafter.memory_scope == "global" else None
        stack.enter_context(Recollection(metrics.traces, runtime.drafter, scope))
        watcher = _start_learning(stack, plant, metrics)
        registry, control = Registry(adapters_dir(config)), trainer_control(plant)
        live = runtime.engine.parts.live
        desks.append(RegistryDesk(registry, watcher, runtime.slot, live, control))
        decode.decode(runtime.engine)
        service.open(runtime.model, runtime.engine, decode.is_alive)
        yield server
