"""The record of a trial: typed, versioned, each field declared once with its meaning, unit and privacy.

JSON Schema, the documentation's table, and the public view all come from these declarations.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from aner_nb.errors import AnerError

SCHEMA_VERSION: Final = 1

Role = Literal["warm_up", "measured"]
Status = Literal["passed", "failed", "cancelled", "not_run"]


def _field(meaning: str, unit: str = "", *, public: bool = True) -> Meta:
    return Meta(description=meaning, extra={"unit": unit, "public": public})


def _private(meaning: str, unit: str = "") -> Meta:
    return _field(meaning, unit, public=False)


class _Record(msgspec.Struct, frozen=True):
    """Base of the records."""


class FailureRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a trial did not pass."""

    kind: Annotated[str, _field("Kind of the error, such as rank_lost.")]
    what: Annotated[str, _private("What went wrong, in one sentence.")]
    where: Annotated[str, _private("Field, rank or machine concerned.")]
    remedy: Annotated[str, _private("What can be done.")]
    reason: Annotated[str, _field("What went wrong, in words that name no machine.")]


class Clocks(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations of the trial, from one monotonic clock on the coordinator."""

    native_fit_ns: Annotated[
        int, _field("First request to last update applied, plus the epochs' validation.", "ns")
    ]
    complete_command_ns: Annotated[int, _field("Source to shutdown; without writing of reports.", "ns")]
    source_ns: Annotated[int, _field("Reading or generating the data.", "ns")]
    preprocess_ns: Annotated[int, _field("Splitting, normalizing, partitioning, fingerprints.", "ns")]
    placement_ns: Annotated[
        int, _field("Process start, connection, sending rows, backend start, compilation.", "ns")
    ]
    backend_start_ns: Annotated[int, _field("Slowest rank's import and device set-up.", "ns")]
    compile_ns: Annotated[int, _field("Slowest rank's placing of rows, tracing and first execution.", "ns")]
    calibration_ns: Annotated[int, _field("Measuring the ranks to choose weights; before native fit.", "ns")]
    validation_ns: Annotated[int, _field("The epochs' validation, inside native fit.", "ns")]
    test_ns: Annotated[int, _field("The final test.", "ns")]
    shutdown_ns: Annotated[int, _field("Ending the ranks.", "ns")]


class Counts(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fixed before the run by the plan, and counted in it."""

    parameters: Annotated[int, _field("Parameters of the model.")]
    train_rows: Annotated[int, _field("Training rows.")]
    validation_rows: Annotated[int, _field("Validation rows.")]
    test_rows: Annotated[int, _field("Test rows.")]
    batches: Annotated[int, _field("Global batches of an epoch.")]
    planned_updates: Annotated[int, _field("Updates that the plan has.")]
    updates: Annotated[int, _field("Updates applied.")]
    planned_rows: Annotated[int, _field("Rows that the plan lets produce gradients, over all epochs.")]
    rows: Annotated[int, _field("Rows that produced gradients, over all epochs.")]


class Fingerprints(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SHA-256 over canonical bytes, hexadecimal."""

    source: Annotated[str, _field("The whole source data set.")]
    train: Annotated[str, _field("Training rows before normalization.")]
    validation: Annotated[str, _field("Validation rows before normalization.")]
    test: Annotated[str, _field("Test rows before normalization.")]
    partitions: Annotated[tuple[str, ...], _field("Each rank's rows, as computed by the rank.")]
    plan: Annotated[str, _field("The plan.")]
    initial_parameters: Annotated[str, _field("The float64 vector before the first update.")]
    final_parameters: Annotated[str, _field("The float64 vector after the last update.")]


class EvaluationRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loss and accuracy on one set of rows."""

    loss: Annotated[float, _field("Mean loss over the rows.")]
    accuracy: Annotated[float | None, _field("Share of rows classified rightly; null for regression.")]


class EpochRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Validation after one epoch."""

    epoch: Annotated[int, _field("0 for the first.")]
    update: Annotated[int, _field("Updates applied by then.")]
    elapsed_ns: Annotated[int, _field("Since the first request.", "ns")]
    loss: Annotated[float, _field("Mean loss over the validation rows.")]
    accuracy: Annotated[float | None, _field("Share classified rightly; null for regression.")]
    train_loss: Annotated[float, _field("Mean over the epoch's updates of the batch loss before the step.")]


class ProofRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shows where gradients were computed."""

    requested: Annotated[str, _field("Device asked for.")]
    produced_on: Annotated[tuple[str, ...], _field("Devices read from the gradient tensors.")]
    operations_on: Annotated[dict[str, int], _field("Operations of the executed graph by device.")]
    framework: Annotated[str, _field("Name and version.")]
    emulated: Annotated[bool, _field("Whether the device only imitates an accelerator.")]


class MemoryRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one rank, by scope. Scopes overlap and are never added up."""

    worker_rss_high_water_bytes: Annotated[
        int, _field("Largest resident memory of the rank's process.", "bytes")
    ]
    rss_before_backend_bytes: Annotated[
        int, _field("Resident memory with the rows received, before the framework was loaded.", "bytes")
    ]
    rss_ready_bytes: Annotated[int, _field("Resident memory before the first update.", "bytes")]
    rss_by_epoch_bytes: Annotated[
        tuple[int, ...], _field("Resident memory after each epoch's last step.", "bytes")
    ]
    partition_bytes: Annotated[int, _field("The rank's rows.", "bytes")]
    device_bytes: Annotated[int | None, _field("Tracked device tensors at the end of training.", "bytes")]
    device_peak_bytes: Annotated[int | None, _field("Most that was tracked.", "bytes")]
    device_bytes_after_close: Annotated[int | None, _field("Still tracked after closing.", "bytes")]
    process_vram_bytes: Annotated[int | None, _field("Video memory of the process.", "bytes")]
    process_vram_reason: Annotated[str, _field("Why there is no figure; empty if there is one.")]


class PhaseSummary(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase of the updates after the first."""

    median_ns: Annotated[int, _field("Median over the updates.", "ns")]
    total_ns: Annotated[int, _field("Sum over all updates.", "ns")]


class RankRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One participant."""

    placement: Annotated[str, _field("Platform, backend, threads or device index.")]
    weight: Annotated[int, _field("Share of each batch.")]
    rows: Annotated[int, _field("Rows that it answered for, over all epochs.")]
    configuration_id: Annotated[str, _field("Of its machine; empty in the coordinator's own process.")]
    channel: Annotated[str, _field("inline, shared_memory or socket.")]
    encryption: Annotated[str, _field("What protects the bytes on their way.")]
    payload_bytes: Annotated[int, _field("Through sockets in one update, both ways.", "bytes")]
    fresh_process: Annotated[bool, _field("Whether its process was started for this trial.")]
    staging: Annotated[str, _field("resident or streamed.")]
    proof: Annotated[ProofRecord, _field("Where gradients were computed.")]
    trace_count: Annotated[int, _field("How often the gradient function was traced.")]
    receive_ns: Annotated[int, _field("Connecting and receiving rows.", "ns")]
    backend_start_ns: Annotated[int, _field("Import and device set-up; before native fit.", "ns")]
    compile_ns: Annotated[int, _field("Placing rows, tracing, first execution; before native fit.", "ns")]
    memory: Annotated[MemoryRecord, _field("By scope.")]
    phases: Annotated[dict[str, PhaseSummary], _field("Of an update, on this rank and its channel.")]


class NoiseRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may have disturbed the trial, on the coordinator's machine."""

    load_before: Annotated[float, _field("1-minute load average before.")]
    load_after: Annotated[float, _field("1-minute load average after.")]
    steal_seconds: Annotated[float, _field("Processor time the hypervisor took meanwhile.", "s")]
    busy_seconds: Annotated[float, _field("Processor time used by all meanwhile.", "s")]
    frequency_mhz: Annotated[float | None, _field("Of core 0 at the end; null where not readable.", "MHz")]
    events_dropped: Annotated[int, _field("Progress events not shown because watching fell behind.")]


class Check(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fixed check of the contract."""

    name: Annotated[str, _field("What is checked.")]
    passed: Annotated[bool, _field("Whether it held.")]
    detail: Annotated[str, _field("The figures compared.")]


class RankCostRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank was measured to cost, all ranks computing: overhead plus rows times the cost of a row."""

    placement: Annotated[str, _field("The rank's.")]
    overhead_s: Annotated[float, _field("Of a request.", "s")]
    row_s: Annotated[float, _field("Of a row.", "s")]
    error_s: Annotated[float, _field("Root mean square of the fit's residuals.", "s")]
    share: Annotated[int, _field("Rows of a full batch that it was given; 0: left out of the group.")]


class RestartRecord(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranks were lost and the training went on."""

    update: Annotated[int, _field("The first update that the new ranks computed.")]
    kind: Annotated[str, _field("What had happened, such as rank_lost.")]
    placements: Annotated[tuple[str, ...], _field("The ranks from then on.")]


class TrialReceipt(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of one trial."""

    schema_version: Annotated[int, _field("Of this record's layout.")] = SCHEMA_VERSION
    case: Annotated[dict[str, Any], _field("The case as declared.")]
    case_name: Annotated[str, _field("Its name.")]
    contract_id: Annotated[str, _field("SHA-256 over the canonical JSON of the case.")]
    work_id: Annotated[str, _field("The same without name and ranks: what is computed.")]
    role: Annotated[Role, _field("warm_up trials are kept, and left out of statistics.")]
    repetition: Annotated[int, _field("1 for the first of its role.")]
    round: Annotated[int, _field("Round of the suite in which it ran; 0 outside a suite.")] = 0
    position: Annotated[int, _field("Place in that round's seeded order.")] = 0
    status: Annotated[Status, _field("passed, failed, cancelled or not_run.")]
    failure: Annotated[FailureRecord | None, _field("Why it did not pass.")] = None
    started: Annotated[str, _field("Date and time in UTC, ISO 8601.")]
    software: Annotated[dict[str, str], _field("Versions on the coordinator.")]
    reduction: Annotated[str, _field("Topology and order of summation.")] = ""
    tail_rule: Annotated[str, _field("Who takes the rows that the weights don't divide.")] = ""
    resumed_from: Annotated[int, _field("Updates that a checkpoint had already; 0: none was used.")] = 0
    calibration: Annotated[
        tuple[RankCostRecord, ...],
        _field("What the weights were chosen from; empty where they were declared."),
    ] = ()
    restarts: Annotated[
        tuple[RestartRecord, ...],
        _field("Losses after which the training went on; such a trial is not measured."),
    ] = ()
    clocks: Annotated[Clocks | None, _field("Durations.")] = None
    counts: Annotated[Counts | None, _field("Rows, batches, updates.")] = None
    fingerprints: Annotated[Fingerprints | None, _field("SHA-256 of data and parameters.")] = None
    validation: Annotated[tuple[EpochRecord, ...], _field("After each epoch.")] = ()
    test: Annotated[EvaluationRecord | None, _field("Once, at the end.")] = None
    ranks: Annotated[tuple[RankRecord, ...], _field("In rank order.")] = ()
    coordinator_phases: Annotated[dict[str, PhaseSummary], _field("Of an update, on the coordinator.")] = (
        msgspec.field(default_factory=dict)
    )
    coordinator_rss_high_water_bytes: Annotated[
        int | None, _field("Largest resident memory of the coordinator's process so far.", "bytes")
    ] = None
    largest_rank: Annotated[int | None, _field("Rank with the largest worker RSS high water.")] = None
    noise: Annotated[NoiseRecord | None, _field("What may have disturbed the trial.")] = None
    checks: Annotated[tuple[Check, ...], _field("Fixed checks of the contract.")] = ()
    host: Annotated[dict[str, Any], _private("Host name, PIDs, addresses: never published.")] = msgspec.field(
        default_factory=dict
    )


class ReceiptError(AnerError):
    """A receipt cannot be read."""

    kind = "receipt_error"


def encode_receipt(receipt: TrialReceipt) -> bytes:
    """Return the receipt as indented JSON text, UTF-8, keys in declared order."""
    return msgspec.json.format(msgspec.json.encode(receipt), indent=2) + b"\n"


def decode_receipt(data: bytes, where: str = "receipt") -> TrialReceipt:
    """Read a receipt.

    Raises
    ------
    ReceiptError
        If it is not JSON, not of this schema version, or a field is wrong; the sentence names it.
    """
    try:
        return msgspec.json.decode(data, type=TrialReceipt)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReceiptError(
            f"not a receipt of schema version {SCHEMA_VERSION} ({error}).",
            where=where,
            remedy="It was written by another version, cut short or changed: remove it to run its trial "
            "again.",
        ) from error


def public_view(record: msgspec.Struct) -> dict[str, Any]:
    """Return the record with only the fields that are declared public, as plain values."""
    view: dict[str, Any] = {}
    hints = typing.get_type_hints(type(record), include_extras=True)
    for name in record.__struct_fields__:
        if _meta(hints[name])["public"]:
            view[name] = _public_value(getattr(record, name))
    return view


def _public_value(value: object) -> Any:
    if isinstance(value, msgspec.Struct):
        return public_view(value)
    if isinstance(value, tuple | list):
        return [_public_value(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        return {key: _public_value(item) for key, item in cast("Mapping[str, object]", value).items()}
    return value


def _meta(hint: Any) -> Mapping[str, Any]:
    for item in hint.__metadata__:
        if isinstance(item, Meta) and item.extra is not None:
            return item.extra
    raise TypeError(f"{hint} declares no unit and privacy")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a receipt, with units and privacy beside each field's meaning."""
    return msgspec.json.schema(TrialReceipt)
