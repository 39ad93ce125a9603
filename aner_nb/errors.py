"""The errors of aner_nb: each says what is wrong, where, and what to do."""

from __future__ import annotations

from typing import ClassVar


class AnerError(Exception):
    """Base of every error that aner_nb raises on purpose.

    Parameters
    ----------
    what : str
        One sentence that says what is wrong.
    where : str
        The field, file, rank or machine that it concerns; empty when `what` already names it.
    remedy : str
        What the reader can do about it.
    """

    kind: ClassVar[str] = "error"

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(what, where, remedy)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head} {self.remedy}".rstrip()

    def to_record(self) -> dict[str, str]:
        """Return the error as plain strings, for a receipt."""
        return {
            "kind": self.kind,
            "what": self.what,
            "where": self.where,
            "remedy": self.remedy,
        }

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.remedy)


def _rebuild(kind: type[AnerError], what: str, where: str, remedy: str) -> AnerError:
    return kind(what, where=where, remedy=remedy)


class CaseError(AnerError):
    """A case, a data set or a file is wrong; raised before any worker starts."""

    kind = "case_error"


class BackendUnavailable(AnerError):
    """A placement cannot run here; its cases are *not run*, not failed."""

    kind = "backend_unavailable"


class ClusterError(AnerError):
    """The Dask cluster cannot be reached, or cannot host what was asked of it."""

    kind = "cluster_error"


class RankLost(AnerError):
    """The process or the connection of a rank went away during a trial."""

    kind = "rank_lost"


class LinkLost(AnerError):
    """A rank lost its connection to the rank that `where` names; the coordinator finds out what is behind it."""

    kind = "link_lost"


class RankFailed(AnerError):
    """A rank raised an error; `what` carries its last line and `where` the rank."""

    kind = "rank_failed"


class DeadlineExceeded(AnerError):
    """A rank is connected but made no progress within the declared time."""

    kind = "deadline_exceeded"


class ContractBroken(AnerError):
    """A result broke a line of the contract (counts, fingerprints, native execution, …)."""

    kind = "contract_broken"


class Cancelled(AnerError):
    """The person, or the program, asked for the trial to stop."""

    kind = "cancelled"


def let_go(error: AnerError) -> AnerError:
    """Drop the frames of a caught error and return it: a kept trial must not keep memory and sockets."""
    following: BaseException | None = error
    while following is not None:
        following.__traceback__ = None
        following = following.__cause__ or following.__context__
    return error


_TOLD_BY_RANKS: tuple[type[AnerError], ...] = (BackendUnavailable, ContractBroken, LinkLost, RankFailed)


def error_of_rank(record: dict[str, object]) -> AnerError:
    """Return the error that a rank told of; of a kind not known here, a `RankFailed`."""
    kinds = {kind.kind: kind for kind in _TOLD_BY_RANKS}
    kind = kinds.get(str(record.get("kind")), RankFailed)
    return kind(
        str(record.get("what", "")),
        where=str(record.get("where", "")),
        remedy=str(record.get("remedy", "")),
    )
