"""Changes of models in all workers of a server, or in none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")
pytest.importorskip("fcntl", reason="the system has no locks of files for workers")

from sardonyx.errors import EditError, RequestError, SardonyxError
from sardonyx.serve.client import Client
from sardonyx.serve.models.repository import LoadOptions, Repository
from sardonyx.serve.operations.changes import Change, encoded
from sardonyx.serve.operations.service import Service, ServiceOptions
from sardonyx.serve.operations.worker_group import HEAD, WorkerGroup
from sardonyx.serve.protocol.limits import Limits
from tests.serve.conftest import tensor
from tests.serve.dispatching import run
from tests.serve.models import proto, save
from tests.serve.processes import process

X = [1.0, 2.0]


class Worker:
    """The operations of one worker, in this process."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.loop = asyncio.get_running_loop()
        repository = Repository(root, Limits(), LoadOptions(threads=1))
        self.service = Service(ServiceOptions(control="edit"), repository, self.loop)
        self.left = 0
        self.group = self.service.group = WorkerGroup(folder, self.service, self.leave)

    def leave(self) -> None:
        self.left += 1

    async def begin(self) -> Worker:
        await self.service.load_all()
        await self.group.join()
        return self

    @property
    def session(self) -> Any:
        return self.service.session_of("weighted", "")

    def state(self) -> tuple[int, list[float]]:
        outputs = self.session.run(None, {"x": np.array([X], np.float32)})
        return self.session.revision, [float(value[0, 0]) for value in outputs]

    async def reached(self, revision: int) -> None:
        while self.session.revision < revision:
            await asyncio.sleep(0.01)

    async def set(self, value: float) -> dict[str, Any]:
        weights = {name: np.full(2, value, np.float32) for name in "ab"}
        return await self.service.update_weights("weighted", "", weights)


@contextlib.asynccontextmanager
async def workers(tmp_path: Path, count: int) -> AsyncIterator[list[Worker]]:
    root, folder = tmp_path / "models", tmp_path / "group"
    folder.mkdir(exist_ok=True)
    for name in ("weighted", "net"):
        save(name, root / f"{name}.onnx")
    begun = [await Worker(root, folder).begin() for _ in range(count)]
    try:
        yield begun
    finally:
        for worker in begun:
            await worker.group.close()
            worker.service.close()


def test_a_change_reaches_all_workers_with_one_revision(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 3) as group:
            first, second, third = group
            assert await first.set(3) == {"revision": 1, "weights": 2}
            assert await second.set(4) == {"revision": 2, "weights": 2}
            assert [worker.state() for worker in group] == [(2, [4, 4])] * 3
            edit = [{"verb": "insert_after", "tensor": "y", "op": "Neg"}]
            assert (await third.service.edit("weighted", "", edit))["revision"] == 3
            assert [worker.state() for worker in group] == [(3, [-4, 4])] * 3
            assert (await first.service.undo("weighted", ""))["revision"] == 4
            assert [worker.state() for worker in group] == [(4, [4, 4])] * 3
            await asyncio.gather(*(worker.set(index) for index, worker in enumerate(group * 4)))
            states = {worker.state()[0]: worker.state()[1] for worker in group}
            assert list(states) == [16] and len(set(states[16])) == 1
            assert not any(worker.left for worker in group)

    run(work)


def test_no_worker_publishes_before_all_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:
            first, second = group
            opened = threading.Event()
            perform = Change.perform

            def held(self: Change, session: Any) -> dict[str, Any]:
                if session is second.session:
                    opened.wait(120)
                return perform(self, session)

            monkeypatch.setattr(Change, "perform", held)
            task = asyncio.ensure_future(first.set(3))
            await asyncio.sleep(0.1)
            assert [worker.state() for worker in group] == [(0, [1, 1])] * 2
            opened.set()
            await task
            assert [worker.state() for worker in group] == [(1, [3, 3])] * 2

    run(work)


def test_a_change_that_one_worker_refuses_is_made_in_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:
            first, second = group
            with pytest.raises(EditError):
                await first.service.update_weights("weighted", "", {"none": np.zeros(2, np.float32)})
            perform = Change.perform

            def refused(self: Change, session: Any) -> dict[str, Any]:
                if session is second.session:
                    raise RequestError("too little memory.", kind="exhausted")
                return perform(self, session)

            monkeypatch.setattr(Change, "perform", refused)
            with pytest.raises(RequestError, match="another worker refuses the change: too little memory"):
                await first.set(3)
            monkeypatch.undo()
            assert [worker.state() for worker in group] == [(0, [1, 1])] * 2
            await second.set(5)
            assert [worker.state() for worker in group] == [(1, [5, 5])] * 2

    run(work)


def test_a_new_worker_takes_edited_models_and_their_revisions(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:
            for value in range(5):
                await group[0].set(value)
            await group[0].service.edit("net", "", [{"verb": "insert_after", "tensor": "y", "op": "Neg"}])
            await group[1].service.unload("weighted")
            with pytest.raises(RequestError):
                await group[0].set(9)
            await group[0].service.load("weighted")
            await group[1].set(7)
            later = await Worker(tmp_path / "models", tmp_path / "group").begin()
            group.append(later)
            assert len({worker.state() == group[0].state() for worker in group}) == 1
            assert {worker.service.session_of("net", "").revision for worker in group} == {1}
            x = np.ones((1, 4), np.float32)
            assert later.service.session_of("net", "").run(None, {"x": x})[0].tolist() == [[-16, -20]]
            await later.set(8)
            assert [worker.state()[1] for worker in group] == [[8, 8]] * 3
            with pytest.raises(RequestError, match=r"another worker refuses.*cannot be undone"):
                await group[0].service.undo("net", "")
            assert {worker.service.session_of("net", "").revision for worker in group} == {1}

    run(work)


def test_a_worker_that_differs_is_started_anew(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:
            first, second = group
            second.session.update_weights({"a": np.zeros(2, np.float32)})
            with pytest.raises(RequestError, match="started anew") as caught:
                await first.set(3)
            assert caught.value.kind == "unavailable" and second.left == 1
            assert first.state() == (0, [1, 1])

    run(work)


@pytest.mark.parametrize("is_decided", [True, False])
def test_a_worker_whose_leader_dies_asks_for_the_decision(tmp_path: Path, is_decided: bool) -> None:
    async def work() -> None:
        async with workers(tmp_path, 1) as group:
            (worker,) = group
            folder = tmp_path / "group"
            (path,) = folder.glob("*.sock")
            reader, writer = await asyncio.open_unix_connection(str(path))
            head, data = Change("weights", "weighted", "1", {"a": np.full(2, 3, np.float32)}).packed()
            message = encoded({**head, "operation": "change", "id": "7"})
            writer.write(HEAD.pack(len(message), len(data)) + message + data)
            await reader.readexactly(HEAD.size)
            assert worker.state()[0] == 0
            if is_decided:
                (folder / "7.go").touch()
            writer.close()
            await (worker.reached(1) if is_decided else asyncio.sleep(0.2))
            assert worker.state() == ((1, [3, 1]) if is_decided else (0, [1, 1]))
            await worker.set(5)
            assert worker.state()[1] == [5, 5]

    run(work)


def test_a_worker_that_ends_in_a_change_is_left_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:

            async def gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readexactly(4)
                writer.close()

            folder = tmp_path / "group"
            server = await asyncio.start_unix_server(gone, str(folder / "gone.sock"))
            (folder / "stale.sock").touch()
            await group[0].set(3)
            assert [worker.state() for worker in group] == [(1, [3, 3])] * 2
            server.close()
            assert not (folder / "stale.sock").exists()

    run(work)


def test_a_decision_that_cannot_be_recorded_is_made_in_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:

            def full(self: Path) -> None:
                raise OSError("no space")

            monkeypatch.setattr(Path, "touch", full)
            with pytest.raises(OSError, match="no space"):
                await group[0].set(3)
            monkeypatch.undo()
            assert [worker.state() for worker in group] == [(0, [1, 1])] * 2
            await group[1].set(4)
            assert [worker.state() for worker in group] == [(1, [4, 4])] * 2

    run(work)


def test_shared_memory_of_one_worker_is_refused(tmp_path: Path) -> None:
    model = save("net", tmp_path / "net.onnx")
    arguments = ["serve", str(model), "--http", "127.0.0.1:0", "--workers", "2", "--allow-client-shm"]
    done = subprocess.run([sys.executable, "-m", "sardonyx", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--allow-client-shm" in done.stderr


def test_changed_files_reach_all_workers_between_changes_by_clients(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 3) as group:
            polls = [asyncio.ensure_future(worker.service.poll(0.01)) for worker in group]
            await group[0].set(3)
            save("doubled", tmp_path / "other.onnx").replace(tmp_path / "models" / "net.onnx")
            sessions = [worker.service.session_of("net", "") for worker in group]
            while any(session.revision != 1 for session in sessions):
                await asyncio.sleep(0.01)
            await group[1].set(4)
            save("weighted", tmp_path / "other.onnx").replace(tmp_path / "models" / "weighted.onnx")
            for worker in group:
                await worker.reached(3)
            assert [worker.state() for worker in group] == [(3, [1, 1])] * 3
            await group[2].set(5)
            assert [worker.state() for worker in group] == [(4, [5, 5])] * 3
            (tmp_path / "models" / "net.onnx").unlink()
            save("add_sub", tmp_path / "other.onnx").replace(tmp_path / "models" / "added.onnx")
            expected = {"added", "weighted"}
            while any({entry["name"] for entry in worker.service.index()} != expected for worker in group):
                await asyncio.sleep(0.01)
            assert not any(worker.left for worker in group)
            for poll in polls:
                poll.cancel()

    run(work)


def test_another_worker_looks_for_files_once_the_first_has_ended(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 3) as group:
            assert [worker.group.leads() for worker in group] == [True, False, False]
            assert [worker.group.leads() for worker in group] == [True, False, False]
            await group[0].group.close()
            assert [worker.group.leads() for worker in group[1:]] == [True, False]

    run(work)


def test_files_that_cannot_be_loaded_leave_every_worker_as_it_was(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:
            await group[0].set(3)
            looks = [asyncio.ensure_future(worker.service.poll(0.01)) for worker in group]
            (tmp_path / "bad.onnx").write_bytes(b"no model")
            (tmp_path / "bad.onnx").replace(tmp_path / "models" / "weighted.onnx")
            while not any(entry["reason"] for worker in group for entry in worker.service.index()):
                await asyncio.sleep(0.01)
            assert [worker.state() for worker in group] == [(1, [3, 3])] * 2
            # A worker that had followed would have left: the next change waits for it.
            await group[1].set(4)
            assert [worker.state() for worker in group] == [(2, [4, 4])] * 2
            assert not any(worker.left for worker in group)
            for look in looks:
                look.cancel()

    run(work)


def test_configurations_and_files_of_a_load_reach_all_workers_and_their_successors(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:
            config = json.dumps({"max_batch_size": 2})
            files = {"file:1/model.onnx": proto("weighted").SerializeToString()}
            await group[0].service.load("weighted", {"config": config})
            await group[1].service.load("fresh", {"config": config, **files})
            group.append(await Worker(tmp_path / "models", tmp_path / "group").begin())
            for worker in group:
                for name in ("weighted", "fresh"):
                    assert worker.service.model_config(name)["max_batch_size"] == 2
                    x = np.array([X], np.float32)
                    assert worker.service.session_of(name, "").run(None, {"x": x})[0][0, 1] == X[1]
            await group[2].service.load("weighted")
            await group[0].service.unload("fresh")
            for worker in group:
                assert worker.service.model_config("weighted")["max_batch_size"] != 2
                with pytest.raises(RequestError, match="not loaded"):
                    worker.service.session_of("fresh", "")
            assert not any(worker.left for worker in group)

    run(work)


def test_a_client_that_goes_leaves_no_change_half_made(tmp_path: Path) -> None:
    async def work() -> None:
        async with workers(tmp_path, 2) as group:
            task = asyncio.ensure_future(group[0].set(3))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            for worker in group:
                await worker.reached(1)
            assert [worker.state() for worker in group] == [(1, [3, 3])] * 2
            await group[1].set(4)
            assert [worker.state() for worker in group] == [(2, [4, 4])] * 2

    run(work)


def test_processes_agree_while_one_is_killed(tmp_path: Path) -> None:
    save("weighted", tmp_path / "models" / "weighted.onnx")
    arguments = (
        str(tmp_path / "models"),
        "--http",
        "127.0.0.1:0",
        "--workers",
        "3",
        "--drain",
        "5",
        "--control",
        "edit",
    )
    with process(*arguments) as (running, announced):
        address = announced["http"]
        latest, answered, failures, values = [0], [0], [], {0: 1.0}
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                least = latest[0]
                # A connection of its own each time: the system chooses the worker.
                try:
                    with Client(address, retries=0) as client:
                        answer = client.infer("weighted", {"x": np.array([X], np.float32)})
                except (SardonyxError, OSError):  # A worker ended.
                    continue
                y, z = answer.outputs["y"][0, 0], answer.outputs["z"][0, 0]
                answered[0] += 1
                if answer.revision < least or y != z or values.get(answer.revision, y) != y:
                    failures.append((least, answer.revision, y, z))

        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        if not children.exists():
            pytest.skip("the system does not list child processes")
        end = time.monotonic() + 120
        while len(children.read_text().split()) < 3:
            assert time.monotonic() < end
            time.sleep(0.05)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 41):
                weights = [tensor(name, "FP32", [2], [float(number)] * 2) for name in "ab"]
                with contextlib.suppress(SardonyxError), Client(address, retries=3) as client:
                    revision = client.post("/v2/models/weighted/weights", {"inputs": weights})["revision"]
                    values[revision], latest[0] = float(number), revision
                if number == 15:
                    os.kill(int(children.read_text().split()[1]), signal.SIGKILL)
                time.sleep(0.05)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert not failures and answered[0] > 40, (failures[:5], answered)
        # One update may have been asked of the worker that was killed.
        assert latest[0] >= 39 and len(values) >= 40, values
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) in (0, 1)


def test_workers_of_a_killed_supervisor_remove_their_folder(tmp_path: Path) -> None:
    model = save("weighted", tmp_path / "weighted.onnx")
    arguments = (str(model), "--http", "127.0.0.1:0", "--workers", "2", "--drain", "5", "--control", "edit")
    with process(*arguments) as (running, _):
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        if not children.exists():
            pytest.skip("the system does not list child processes")
        end = time.monotonic() + 120
        while len(pids := children.read_text().split()) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        environment = dict(
            entry.split("=", 1) for entry in Path(f"/proc/{pids[0]}/environ").read_text().split("\0") if entry
        )
        folder = Path(environment["SARDONYX_SERVE_GROUP"])
        assert folder.is_dir()
        running.kill()
        end = time.monotonic() + 120
        while folder.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
