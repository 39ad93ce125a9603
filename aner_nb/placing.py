"""Rows of a Dask collection on their way to the ranks: from worker to worker, and never through this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import ClusterError
from aner_nb.file_rows import RowsFile, blocks_of_rows, read_pieces, write_pieces
from aner_nb.host import RankSetup
from aner_nb.staging import is_staged

Runs = Sequence[tuple[int, int]]


def place_rows(client: Any, setups: Sequence[RankSetup], addresses: Sequence[str]) -> None:
    """Bring each rank's rows to the disk of its worker, where that does not see the folder they were prepared in.

    A worker that sees the folder reads them block by block, the rank's worker writes them to the same places of a file
    of the same name: tasks of Dask, which hands the blocks from the one to the other.

    Raises
    ------
    ClusterError
        If no worker sees the folder any more, or one is lost.
    """
    files = setups[0].files
    if files is None or not setups[0].placed:
        return
    folder = str(Path(files[0].path).parent)
    try:
        sees: dict[str, bool] = client.run(is_staged, folder, setups[0].placed)
        far = [
            (setup, address) for setup, address in zip(setups, addresses, strict=True) if not sees[address]
        ]
        source = next((address for address, seen in sees.items() if seen), None)
        if far and source is None:
            raise ClusterError(
                "no worker sees the rows that were prepared.",
                where="data.cache",
                remedy="Run the trial again; they are prepared anew.",
            )
        for setup, address in far:
            for file in files:
                for runs in blocks_of_rows(file, setup.plan.runs(setup.rank)):
                    _move(client, file, runs, source, address)
    except (OSError, KeyError) as error:
        raise ClusterError(
            f"rows could not be brought to a rank ({type(error).__name__}: {error}).",
            where="data",
            remedy="Look at the workers' logs, and run the trial again.",
        ) from error


def _move(client: Any, file: RowsFile, runs: Runs, source: Any, address: str) -> None:
    where = {"allow_other_workers": False, "pure": False}
    pieces = client.submit(_read, file, list(runs), workers=[source], **where)
    client.submit(_write, file, list(runs), pieces, workers=[address], **where).result()


def _read(file: RowsFile, runs: Runs) -> list[NDArray[np.generic]]:
    return read_pieces(file, runs)


def _write(file: RowsFile, runs: Runs, pieces: Sequence[NDArray[np.generic]]) -> None:
    write_pieces(file, runs, pieces)
