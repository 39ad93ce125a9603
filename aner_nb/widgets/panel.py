"""What all widgets share: commands from the browser, and errors shown in the widget."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anywidget
import numpy as np
import traitlets

from aner_nb.errors import AnerError

Command = Callable[[Mapping[str, Any]], None]


def sentence(error: BaseException) -> str:
    """Return an error as it is shown to people."""
    return str(error) if isinstance(error, AnerError) else f"{type(error).__name__}: {error}"


class Panel(anywidget.AnyWidget):
    """A widget in a frame that opens and closes, and shows what went wrong.

    Callbacks may come on threads other than the main one, also two at a time: `lock` guards a widget's own state.
    """

    expanded = traitlets.Bool(True, help="Whether the frame is open.").tag(sync=True)
    error = traitlets.Unicode("", help="What went wrong last; empty: nothing.").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self.lock = threading.RLock()
        super().__init__(**traits)
        self._answer_anywhere()
        self.on_msg(self._receive)

    @abstractmethod
    def commands(self) -> Mapping[str, Command]:
        """Return what the browser may ask for, by name."""

    def guarded(self, action: Callable[[], None]) -> None:
        """Do something; an error is shown in the widget instead of being raised."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 -- shown
            self.error = sentence(error)

    def _send(self, msg: Any, buffers: Any = None) -> None:
        super()._send(msg, buffers=buffers)
        self._answer_anywhere()

    def _answer_anywhere(self) -> None:
        """Let the browser's messages go to the subshell that it names, also while a cell runs.

        ipykernel 7 sends them to the thread that the widget last sent from, which is the busy main one: without this,
        Cancel would wait for the end of a long cell.
        """
        if self.comm is not None:
            vars(self.comm).pop("_reply_subshell_id", None)

    def _receive(self, _widget: object, content: Any, _buffers: object) -> None:
        def act() -> None:
            asked: Any = content.get("do", "") if isinstance(content, dict) else ""
            command = self.commands().get(asked)
            if command is None:
                raise AnerError(f"the browser asked for {content!r}, which is not known.")
            command(content)

        self.guarded(act)


def coded(texts: Sequence[str]) -> tuple[list[str], bytes]:
    """Return a column as its distinct texts, in order of appearance, and a uint32 code for each row."""
    levels: dict[str, int] = {}
    codes = [levels.setdefault(text, len(levels)) for text in texts]
    return list(levels), np.asarray(codes, "<u4").tobytes()


def one_line(text: str) -> str:
    """Return text that fits into a list whose items are separated by line feeds and tabs."""
    return " ".join(text.split())
