"""Changes of models that reach all workers of a server, or none.

The workers of one server have a folder that only their user can enter. Each listens on a socket in it, and one at a
time, by the lock of a file, makes a change for all:

1. Every worker prepares: it makes the edit, compiles it, and waits before calls see it.
2. If one refuses, all forget the edit. Else a file records the decision, and every worker publishes.
3. The client is answered when all have published, with the revision, which is the same in each.

A worker that ends is left out. Its successor takes models and revisions from a worker that serves, under the same lock,
before it listens. A worker that loses the one that decides asks the file. A worker that fails after the decision, or
whose revision differs, ends itself, so that its successor agrees.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from sardonyx.errors import RequestError, ResourceError
from sardonyx.runtime.live.publication import publication_gate
from sardonyx.runtime.session import Session
from sardonyx.serve.operations.changes import Change, decoded, encoded
from sardonyx.serve.protocol.refusals import refusal

HEAD = struct.Struct("<IQ")
"""Lengths of the JSON object and of the bytes of a message."""

_LOCK_SECONDS = 60.0
"""Longest wait for changes of other workers."""

_LOCK_STEP = 0.005

_PREPARE_SECONDS = 600.0
"""Longest preparation of an edit, which may compile."""

_CLOSE_SECONDS = 5.0
"""Longest wait of a worker that ends for changes that are under way."""

T = TypeVar("T")

_log = logging.getLogger("sardonyx.serve")


_Message: TypeAlias = tuple[dict[str, Any], bytes]
"""A JSON object and bytes."""


class Abandoned(Exception):
    """The workers do not make the change: another one refused."""


class State(NamedTuple):
    """The state of a loaded version that a new worker takes.

    Attributes:
        name: The name of the model.
        version: The number of the version as text.
        revision: The number of the revision; -1 for an ensemble, which has the revisions of its models.
        model: The model; empty if it is that of the repository.
        override: The configuration in place of the repository's, see :class:`.Override`; empty for none.
        files: The files in place of the repository's.
    """

    name: str
    version: str
    revision: int
    model: bytes
    override: Mapping[str, Any] = {}
    files: bytes = b""


class Member(Protocol):
    """The operations of a worker that the group needs."""

    def session_of(self, model: str, version: str) -> Session:
        """Return the session of a version."""

    async def in_worker(self, work: Callable[[], Any]) -> Any:
        """Do slow work in another thread."""

    async def follow(self, operation: str, model: str, parameters: Mapping[str, Any], data: bytes) -> None:
        """Load or unload a model here, as another worker has done."""

    async def states(self) -> list[State]:
        """Return the state of all loaded versions."""

    async def take(self, states: list[State]) -> None:
        """Load, replace and renumber models so that they have these states."""


class _Link(NamedTuple):
    """A connection to another worker."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class WorkerGroup:
    """The workers of one server, as one of them sees the others.

    Args:
        folder: The folder of the sockets.
        member: The operations of this worker.
        leave: Ends this worker, which is started anew.
    """

    def __init__(self, folder: Path, member: Member, leave: Callable[[], None]) -> None:
        self._folder = folder
        self._member = member
        self._leave = leave
        self._own = folder / f"{uuid.uuid4().hex[:16]}.sock"
        self._turn = asyncio.Lock()
        self._lead: int | None = None
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def join(self) -> None:
        """Take the state of a worker that serves, and take part in changes from now on.

        Raises:
            ResourceError: The folder cannot be used, or the other workers are busy.
        """
        async with self._exclusive():
            async with self._links() as links:
                for link in links:
                    states = await self._states_of(link)
                    if states is not None:
                        await self._member.take(states)
                        break
            self._own.unlink(missing_ok=True)
            self._listener = await asyncio.start_unix_server(self._accept, str(self._own))

    async def close(self) -> None:
        """Take part in no further change."""
        if self._lead is not None:
            os.close(self._lead)
            self._lead = None
        if self._listener is not None:
            self._listener.close()
            self._own.unlink(missing_ok=True)
        if self._tasks:
            # A change that is under way is finished, or left to the others.
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()

    # The worker that a client asked.

    async def change(self, change: Change, session: Session) -> dict[str, Any]:
        """Make a change in all workers, or in none.

        Args:
            change: The change.
            session: The session of the model in this worker.

        Returns:
            The answer to the client.

        Raises:
            SardonyxError: A worker refuses the change; the models are unchanged.
        """
        # The client may go: the workers must agree nevertheless.
        return await asyncio.shield(self._task(self._change(change, session)))

    async def _change(self, change: Change, session: Session) -> dict[str, Any]:
        identity = uuid.uuid4().hex
        head, data = await self._member.in_worker(change.packed)
        message = encoded({**head, "operation": "change", "id": identity})
        async with self._exclusive(), self._links() as links:
            own = _Preparation(self._member, change, session)
            with own:
                exchanges = [asyncio.ensure_future(_exchange(link, message, data)) for link in links]
                problem = await own.wait()
                answers = [(link, answer) for link, answer in await asyncio.gather(*exchanges) if answer]
                problem = problem or _problem([head for _, (head, _) in answers], own.before)
                others = [link for link, _ in answers]
                if problem is not None or not own.is_waiting:
                    await _tell(others, go=False, revision=own.before)
                    return await own.refused(problem)
                record = self._folder / f"{identity}.go"
                record.touch()
                await _tell(others, go=True, revision=own.before)
                own.decide(True)
            try:
                result = await own.result()
            except Exception:
                self._leave()  # The others have published the edit.
                raise
            await asyncio.gather(*map(_finished, others))
            record.unlink(missing_ok=True)
            return result

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Return a task that is not collected before its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def leads(self) -> bool:
        """Return True in one worker, which looks for changed files for all; in another once the first has ended."""
        import fcntl  # Imported late: not on every system, as the workers themselves.

        if self._lead is None:
            descriptor = os.open(self._folder / "lead", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._lead = descriptor
        return True

    async def follow(
        self, operation: str, model: str, parameters: Mapping[str, Any], own: Callable[[], Awaitable[None]],
        data: bytes = b"",
    ) -> None:  # fmt: skip
        """Load or unload a model here, then in the other workers, one operation of the group at a time.

        A worker that fails is started anew, and takes the models of this one.

        Args:
            operation: ``"load"`` or ``"unload"``.
            model: The name of the model.
            parameters: Parameters of the operation for the other workers.
            own: Makes the change here; an exception ends the operation.
            data: Bytes of the parameters.
        """
        await asyncio.shield(self._task(self._follow_own(operation, model, parameters, own, data)))

    async def _follow_own(
        self, operation: str, model: str, parameters: Mapping[str, Any], own: Callable[[], Awaitable[None]], data: bytes
    ) -> None:
        message = encoded({"operation": operation, "model": model, "parameters": dict(parameters)})
        async with self._exclusive():
            await own()
            async with self._links() as links:
                await asyncio.gather(*(_exchange(link, message, data) for link in links))

    @contextlib.asynccontextmanager
    async def _links(self) -> AsyncIterator[list[_Link]]:
        """Connect to all other workers that serve; the connections are closed at the end of the block."""
        links: list[_Link] = []
        try:
            for path in sorted(self._folder.glob("*.sock")):
                if path == self._own:
                    continue
                try:
                    links.append(_Link(*await asyncio.open_unix_connection(str(path))))
                except (ConnectionError, FileNotFoundError):
                    path.unlink(missing_ok=True)
            yield links
        finally:
            for link in links:
                link.writer.close()

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Exclude changes of other workers; the system frees the lock of a worker that ends."""
        import fcntl  # Imported late: not on every system, as the workers themselves.

        async with self._turn:
            descriptor = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                end = asyncio.get_running_loop().time() + _LOCK_SECONDS
                while True:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    if asyncio.get_running_loop().time() > end:
                        raise RequestError(
                            "another worker changes models.", kind="unavailable", retry_after=1.0,
                            remedy="Repeat the request later.",
                        )  # fmt: skip
                    await asyncio.sleep(_LOCK_STEP)
                yield
            finally:
                os.close(descriptor)

    async def _states_of(self, link: _Link) -> list[State] | None:
        _, answer = await _exchange(link, encoded({"operation": "state"}))
        if answer is None:
            return None
        head, data = answer
        if "error" in head:
            raise ResourceError(f"another worker cannot hand over its models: {head['error']}")
        states, offset = [], 0
        for name, version, revision, size, override, files in head["states"]:
            end = offset + size
            states.append(State(name, version, revision, data[offset:end], override, data[end : end + files]))
            offset = end + files
        return states

    # A worker that another one asked.

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._task(self._answer(_Link(reader, writer)))

    async def _answer(self, link: _Link) -> None:
        try:
            message = await _received(link)
            if message is None:
                return
            head, data = message
            match head["operation"]:
                case "state":
                    await self._hand_over(link)
                case "change":
                    await self._take_part(link, head, data)
                case operation:
                    await self._follow(link, operation, head, data)
        except ConnectionError as error:
            _log.warning("another worker has gone: %s", error)
        except Exception:
            _log.exception("internal: a change of another worker failed: this one is started anew")
            self._leave()
        finally:
            link.writer.close()

    async def _hand_over(self, link: _Link) -> None:
        try:
            states = await self._member.states()
        except Exception as error:
            await _send(link, encoded({"error": str(refusal(error)[0])}))
            return
        parts = [[s.name, s.version, s.revision, len(s.model), s.override, len(s.files)] for s in states]
        await _send(link, encoded({"states": parts}), b"".join(part for s in states for part in (s.model, s.files)))

    async def _follow(self, link: _Link, operation: str, head: Mapping[str, Any], data: bytes) -> None:
        try:
            await self._member.follow(operation, head["model"], head["parameters"], data)
        finally:
            await _send(link, encoded({}))

    async def _take_part(self, link: _Link, head: Mapping[str, Any], data: bytes) -> None:
        change = Change.unpacked(head, data)
        try:
            session = self._member.session_of(change.model, change.version)
        except RequestError as error:
            # The worker that asked has the model: this one has missed a change.
            await _send(link, encoded({"error": str(error), "kind": error.kind}))
            self._leave()
            return
        with _Preparation(self._member, change, session) as own:
            failure = await own.wait()
            head_of_answer: dict[str, Any] = {"revision": own.before}
            if failure is not None:
                problem, is_defect = refusal(failure)
                if is_defect:
                    _log.error("internal: a change of another worker failed", exc_info=failure)
                head_of_answer |= {"error": str(problem), "kind": problem.kind}
            await _send(link, encoded(head_of_answer))
            decision = await _received(link)
            if decision is None:
                is_made = (self._folder / f"{head['id']}.go").exists()
            else:
                is_made = decision[0]["go"]
                if decision[0]["revision"] != own.before:
                    _log.error("this worker has revision %d of %s, another one %d: it is started anew",
                               own.before, change.model, decision[0]["revision"])  # fmt: skip
                    self._leave()
            own.decide(is_made)
        if failure is None:
            with contextlib.suppress(Abandoned):
                await own.result()
        if decision is not None:
            await _send(link, encoded({}))


class _Preparation:
    """An edit in this worker, which waits for the decision before calls see it.

    Attributes:
        before: The revision before the edit.
        is_waiting: True if the edit is prepared; False before, after an error, and if it changes nothing.
    """

    def __init__(self, member: Member, change: Change, session: Session) -> None:
        self.before = session.revision
        self.is_waiting = False
        self._loop = asyncio.get_running_loop()
        self._prepared: asyncio.Future[None] = self._loop.create_future()
        self._decision: Future[bool] = Future()
        self._task = self._loop.create_task(member.in_worker(lambda: self._perform(change, session)))

    def _perform(self, change: Change, session: Session) -> dict[str, Any]:
        with publication_gate(self._gate):
            return change.perform(session)

    def _gate(self) -> None:
        if not self._decision.done():
            self._loop.call_soon_threadsafe(self._prepared.set_result, None)
        if not self._decision.result(_PREPARE_SECONDS):
            raise Abandoned

    async def wait(self) -> Exception | None:
        """Wait until the edit is prepared or has failed; return the error."""
        await asyncio.wait((self._task, self._prepared), return_when=asyncio.FIRST_COMPLETED)
        self.is_waiting = self._prepared.done()
        if self.is_waiting:
            return None
        error = self._task.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error

    def __enter__(self) -> _Preparation:
        """Return the edit, which is forgotten at the end of the block unless the decision was made."""
        return self

    def __exit__(self, *reason: object) -> None:
        """Forget the edit if no decision was made, because the block failed."""
        if not self._decision.done():
            self.decide(False)

    def decide(self, go: bool) -> None:
        """Let the edit be published, or forgotten."""
        self._decision.set_result(go)
        # An edit that is forgotten ends with an exception, which the event loop reports unless it is read.
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def refused(self, problem: Exception | None) -> dict[str, Any]:
        """Forget the edit, and return the answer to an edit that changes nothing.

        Args:
            problem: The reason, which is raised; None for an edit that changes nothing.
        """
        self.decide(False)
        await asyncio.wait((self._task,))
        error = self._task.exception()
        if problem is not None:
            raise problem from (None if error is problem else error)
        return await self.result()

    async def result(self) -> dict[str, Any]:
        """Return the answer to the client once calls see the edit.

        Raises:
            Abandoned: The edit is forgotten.
        """
        result: dict[str, Any] = await self._task
        return result


def _problem(answers: Iterable[dict[str, Any]], revision: int) -> RequestError | None:
    """Return the reason why the workers cannot make a change; None if all are prepared."""
    for head in answers:
        if head.get("revision") != revision:
            return RequestError(
                "a worker that missed a change is started anew.", kind="unavailable", retry_after=1.0,
                remedy="Repeat the request.",
            )  # fmt: skip
        if "error" in head:
            return RequestError(f"another worker refuses the change: {head['error']}", kind=head["kind"])
    return None


async def _tell(others: list[_Link], *, go: bool, revision: int) -> None:
    message = encoded({"go": go, "revision": revision})
    for link in others:
        with contextlib.suppress(ConnectionError):  # Its successor takes the state.
            await _send(link, message)


async def _exchange(link: _Link, message: bytes, data: bytes = b"") -> tuple[_Link, _Message | None]:
    """Send a message, and return the link and the answer; None if the other worker ends, or is too slow."""
    try:
        await _send(link, message, data)
        return link, await asyncio.wait_for(_received(link), _PREPARE_SECONDS)
    except (TimeoutError, ConnectionError):
        return link, None


async def _finished(link: _Link) -> None:
    """Wait until another worker has published a change, or has ended."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_received(link), _PREPARE_SECONDS)


async def _send(link: _Link, message: bytes, data: bytes = b"") -> None:
    link.writer.write(HEAD.pack(len(message), len(data)))
    link.writer.write(message)
    link.writer.write(data)
    await link.writer.drain()


async def _received(link: _Link) -> _Message | None:
    try:
        sizes = HEAD.unpack(await link.reader.readexactly(HEAD.size))
        return decoded(await link.reader.readexactly(sizes[0])), await link.reader.readexactly(sizes[1])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
