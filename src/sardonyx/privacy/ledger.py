"""The ledger: how many noisy answers each client has had from each model, on disk."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from sardonyx.errors import PrivacyBudgetError, ResourceError
from sardonyx.privacy.accounting import Budget, epsilon_of

_WAIT_SECONDS = 10.0
_MOST_ANSWERS = 1 << 53


class Ledger:
    """Numbers of answers by client and model in a file of SQLite.

    A charge is one transaction, which is on the disk before the answer is computed: a crash may charge for an answer
    that was not sent, and never the reverse. Several processes may charge the same file. The file protects from
    accidents, not from its owner: deleting it, or restoring an old copy, restores the budget.

    Args:
        path: The file; it is created readable by its owner alone.

    Raises:
        ResourceError: The file cannot be opened, or is not a ledger.

    Example:
        >>> ledger = Ledger("privacy.ledger")
        >>> ledger.spent("client", "model", delta=1e-6)
        0.0
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise ResourceError(f"the ledger cannot be opened: {error.strerror}.", where=str(path)) from error
        with self._transaction() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS answers (client TEXT NOT NULL, model TEXT NOT NULL, event TEXT NOT NULL,"
                " count INTEGER NOT NULL CHECK (count > 0), PRIMARY KEY (client, model, event)) WITHOUT ROWID"
            )

    def charge(self, client: str, model: str, answers: Mapping[str, int], budget: Budget) -> float:
        """Record answers that are about to be given; return epsilon of all answers to the client so far.

        Args:
            client: The name of the client.
            model: The name of the model.
            answers: Numbers of answers by :attr:`.Noise.event`.
            budget: The limit.

        Raises:
            PrivacyBudgetError: The answers would exceed the budget; nothing is recorded.
            ResourceError: The file cannot be written.
        """
        with self._transaction() as connection:
            total = self._answers(connection, client, model)
            for event, count in answers.items():
                total[event] = total.get(event, 0) + count
            epsilon = epsilon_of(total, budget.delta)
            if epsilon > budget.epsilon * (1 + 1e-12) or max(total.values(), default=0) > _MOST_ANSWERS:
                raise PrivacyBudgetError(
                    f"the privacy budget of the client is used up: epsilon {epsilon:.6g} would exceed"
                    f" {budget.epsilon:.6g} at delta {budget.delta:g}.",
                    where=model,
                    remedy="Waiting does not help: the budget does not grow again.",
                )
            connection.executemany(
                "INSERT INTO answers VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                [(client, model, event, count) for event, count in answers.items() if count],
            )
        return epsilon

    def spent(self, client: str, model: str, delta: float) -> float:
        """Return epsilon of all answers of a model to a client so far.

        Args:
            client: The name of the client.
            model: The name of the model.
            delta: Delta of the guarantee.

        Raises:
            ResourceError: The file cannot be read.
        """
        with self._transaction() as connection:
            return epsilon_of(self._answers(connection, client, model), delta)

    def _answers(self, connection: sqlite3.Connection, client: str, model: str) -> dict[str, int]:
        rows = connection.execute("SELECT event, count FROM answers WHERE client = ? AND model = ?", (client, model))
        return dict(rows.fetchall())

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            # A connection a transaction: connections belong to a thread, and do not survive a fork.
            with contextlib.closing(sqlite3.connect(self.path, _WAIT_SECONDS, isolation_level=None)) as connection:
                # FULL leaves the deletion of the journal, which commits, to the file system: a loss of power undoes it.
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise ResourceError(f"the ledger cannot be used: {error}.", where=str(self.path)) from error
