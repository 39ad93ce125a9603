"""The record of a trial: typed, versioned, each field declared once with its meaning, unit and privacy.

JSON Schema, the documentation's table, and the public view all come from these declarations.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from aner_nb.errors import AnerError
from aner_nb.facts import Record, fact, private
from aner_nb.plain import read_json

SCHEMA_VERSION: Final = 1
ADDED_FIELDS: Final = frozenset({"stopping", "row_budget_bytes"})
"""Fields, at any depth, that a receipt of this schema version may lack, since it was written before there were any:
they then have their default, which says that what they are about was not used."""

Role = Literal["warm_up", "measured"]
Status = Literal["passed", "failed", "cancelled", "not_run"]


class FailureRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a trial did not pass."""

    kind: Annotated[str, fact("Kind of the error, such as rank_lost.")]
    what: Annotated[str, private("What went wrong, in one sentence.")]
    where: Annotated[str, private("Field, rank or machine concerned.")]
    remedy: Annotated[str, private("What can be done.")]
    reason: Annotated[str, fact("What went wrong, in words that name no machine.")]


class Clocks(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations of the trial, from one monotonic clock on the coordinator."""

    native_fit_ns: Annotated[
        int, fact("First request to last update applied, plus the epochs' validation.", "ns")
    ]
    complete_command_ns: Annotated[int, fact("Source to shutdown; without writing of reports.", "ns")]
    source_ns: Annotated[int, fact("Reading or generating the data.", "ns")]
    preprocess_ns: Annotated[int, fact("Splitting, normalizing, partitioning, fingerprints.", "ns")]
    placement_ns: Annotated[
        int, fact("Process start, connection, sending rows, backend start, compilation.", "ns")
    ]
    backend_start_ns: Annotated[int, fact("Slowest rank's import and device set-up.", "ns")]
    compile_ns: Annotated[int, fact("Slowest rank's placing of rows, tracing and first execution.", "ns")]
    calibration_ns: Annotated[int, fact("Measuring the ranks to choose weights; before native fit.", "ns")]
    validation_ns: Annotated[int, fact("The epochs' validation, inside native fit.", "ns")]
    test_ns: Annotated[int, fact("The final test.", "ns")]
    shutdown_ns: Annotated[int, fact("Ending the ranks.", "ns")]


class Counts(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fixed before the run by the plan, and counted in it."""

    parameters: Annotated[int, fact("Parameters of the model.")]
    train_rows: Annotated[int, fact("Training rows.")]
    validation_rows: Annotated[int, fact("Validation rows.")]
    test_rows: Annotated[int, fact("Test rows.")]
    batches: Annotated[int, fact("Global batches of an epoch.")]
    planned_updates: Annotated[int, fact("Updates that the plan has, if it is not stopped early.")]
    updates: Annotated[int, fact("Updates applied.")]
    planned_rows: Annotated[
        int, fact("Rows that the plan lets produce gradients, if it is not stopped early.")
    ]
    rows: Annotated[int, fact("Rows that produced gradients, over all epochs.")]


class Fingerprints(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SHA-256 over canonical bytes, hexadecimal."""

    source: Annotated[str, fact("The whole source data set.")]
    train: Annotated[str, fact("Training rows before normalization.")]
    validation: Annotated[str, fact("Validation rows before normalization.")]
    test: Annotated[str, fact("Test rows before normalization.")]
    partitions: Annotated[tuple[str, ...], fact("Each rank's rows, as computed by the rank.")]
    plan: Annotated[str, fact("The plan.")]
    initial_parameters: Annotated[str, fact("The float64 vector before the first update.")]
    final_parameters: Annotated[str, fact("The float64 vector after the last update.")]


class EvaluationRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loss and accuracy on one set of rows."""

    loss: Annotated[
        float | None,
        fact("Mean loss over the rows, without L2 and class weights; null where it is not finite."),
    ]
    accuracy: Annotated[float | None, fact("Share of rows classified rightly; null for regression.")]


class EpochRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Validation after one epoch."""

    epoch: Annotated[int, fact("0 for the first.")]
    update: Annotated[int, fact("Updates applied by then.")]
    elapsed_ns: Annotated[int, fact("Since the first request.", "ns")]
    loss: Annotated[
        float | None,
        fact(
            "Mean loss over the validation rows, without L2 and class weights; null where it is not finite."
        ),
    ]
    accuracy: Annotated[float | None, fact("Share classified rightly; null for regression.")]
    train_loss: Annotated[
        float | None,
        fact(
            "Mean over the epoch's updates of the batch loss before the step, with L2 and class weights; null where "
            "it is not finite."
        ),
    ]


class ProofRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shows where gradients were computed."""

    requested: Annotated[str, fact("Device asked for.")]
    produced_on: Annotated[tuple[str, ...], fact("Devices read from the gradient tensors.")]
    operations_on: Annotated[dict[str, int], fact("Operations of the executed graph by device.")]
    framework: Annotated[str, fact("Name and version.")]
    emulated: Annotated[bool, fact("Whether the device only imitates an accelerator.")]


class MemoryRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one rank, by scope. Scopes overlap and are never added up."""

    worker_rss_high_water_bytes: Annotated[
        int, fact("Largest resident memory of the rank's process.", "bytes")
    ]
    rss_before_backend_bytes: Annotated[
        int, fact("Resident memory with the rows received, before the framework was loaded.", "bytes")
    ]
    rss_ready_bytes: Annotated[int, fact("Resident memory before the first update.", "bytes")]
    rss_by_epoch_bytes: Annotated[
        tuple[int, ...], fact("Resident memory after each epoch's last step.", "bytes")
    ]
    partition_bytes: Annotated[int, fact("The rank's rows.", "bytes")]
    device_bytes: Annotated[int | None, fact("Tracked device tensors at the end of training.", "bytes")]
    device_peak_bytes: Annotated[int | None, fact("Most that was tracked.", "bytes")]
    device_bytes_after_close: Annotated[int | None, fact("Still tracked after closing.", "bytes")]
    process_vram_bytes: Annotated[int | None, fact("Video memory of the process.", "bytes")]
    process_vram_reason: Annotated[str, fact("Why there is no figure; empty if there is one.")]


class PhaseSummary(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase of the updates after the first."""

    median_ns: Annotated[int, fact("Median over the updates.", "ns")]
    total_ns: Annotated[int, fact("Sum over all updates.", "ns")]


class RankRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One participant."""

    placement: Annotated[str, fact("Platform, backend, threads or device index.")]
    weight: Annotated[int, fact("Share of each batch.")]
    rows: Annotated[int, fact("Rows that it answered for, over all epochs.")]
    configuration_id: Annotated[str, fact("Of its machine; empty in the coordinator's own process.")]
    channel: Annotated[str, fact("inline, shared_memory or socket.")]
    encryption: Annotated[str, fact("What protects the bytes on their way.")]
    payload_bytes: Annotated[int, fact("Through sockets in one update, both ways.", "bytes")]
    fresh_process: Annotated[bool, fact("Whether its process was started for this trial.")]
    staging: Annotated[str, fact("resident or streamed.")]
    row_budget_bytes: Annotated[
        int | None, fact("Most that rows may take to be resident where that is not declared.", "bytes")
    ] = None
    proof: Annotated[ProofRecord, fact("Where gradients were computed.")]
    trace_count: Annotated[int, fact("How often the gradient function was traced.")]
    receive_ns: Annotated[int, fact("Connecting and receiving rows.", "ns")]
    backend_start_ns: Annotated[int, fact("Import and device set-up; before native fit.", "ns")]
    compile_ns: Annotated[int, fact("Placing rows, tracing, first execution; before native fit.", "ns")]
    memory: Annotated[MemoryRecord, fact("By scope.")]
    phases: Annotated[dict[str, PhaseSummary], fact("Of an update, on this rank and its channel.")]


class NoiseRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may have disturbed the trial, on the coordinator's machine."""

    load_before: Annotated[float, fact("1-minute load average before.")]
    load_after: Annotated[float, fact("1-minute load average after.")]
    steal_seconds: Annotated[float, fact("Processor time the hypervisor took meanwhile.", "s")]
    busy_seconds: Annotated[float, fact("Processor time used by all meanwhile.", "s")]
    frequency_mhz: Annotated[float | None, fact("Of core 0 at the end; null where not readable.", "MHz")]
    events_dropped: Annotated[int, fact("Progress events not shown because watching fell behind.")]


class Check(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fixed check of the contract."""

    name: Annotated[str, fact("What is checked.")]
    passed: Annotated[bool, fact("Whether it held.")]
    detail: Annotated[str, fact("The figures compared.")]


class RankCostRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank was measured to cost, all ranks computing: overhead plus rows times the cost of a row."""

    placement: Annotated[str, fact("The rank's.")]
    overhead_s: Annotated[float, fact("Of a request.", "s")]
    row_s: Annotated[float, fact("Of a row.", "s")]
    error_s: Annotated[float, fact("Root mean square of the fit's residuals.", "s")]
    share: Annotated[int, fact("Rows of a full batch that it was given; 0: left out of the group.")]


class RestartRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranks were lost and the training went on."""

    update: Annotated[int, fact("The first update that the new ranks computed.")]
    kind: Annotated[str, fact("What had happened, such as rank_lost.")]
    placements: Annotated[tuple[str, ...], fact("The ranks from then on.")]


class StoppingRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where training ended, of a case that may stop early; the counts of updates and rows are those until there."""

    epochs: Annotated[int, fact("Epochs that were run.")]
    stopped: Annotated[bool, fact("Whether that is before the last: the validation loss had ceased to fall.")]
    best_epoch: Annotated[int, fact("With the best validation loss; 0 for the first.")]
    restored: Annotated[bool, fact("Whether the final parameters are those after the best epoch.")]


class TrialReceipt(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of one trial."""

    schema_version: Annotated[int, fact("Of this record's layout.")] = SCHEMA_VERSION
    case: Annotated[dict[str, Any], fact("The case as declared.")]
    case_name: Annotated[str, fact("Its name.")]
    contract_id: Annotated[str, fact("SHA-256 over the canonical JSON of the case.")]
    work_id: Annotated[str, fact("The same without name and ranks: what is computed.")]
    role: Annotated[Role, fact("warm_up trials are kept, and left out of statistics.")]
    repetition: Annotated[int, fact("1 for the first of its role.")]
    round: Annotated[int, fact("Round of the suite in which it ran; 0 outside a suite.")] = 0
    position: Annotated[int, fact("Place in that round's seeded order.")] = 0
    status: Annotated[Status, fact("passed, failed, cancelled or not_run.")]
    failure: Annotated[FailureRecord | None, fact("Why it did not pass.")] = None
    started: Annotated[str, fact("Date and time in UTC, ISO 8601.")]
    software: Annotated[dict[str, str], fact("Versions on the coordinator.")]
    reduction: Annotated[str, fact("Topology and order of summation.")] = ""
    tail_rule: Annotated[str, fact("Who takes the rows that the weights don't divide.")] = ""
    resumed_from: Annotated[int, fact("Updates that a checkpoint had already; 0: none was used.")] = 0
    calibration: Annotated[
        tuple[RankCostRecord, ...],
        fact("What the weights were chosen from; empty where they were declared."),
    ] = ()
    restarts: Annotated[
        tuple[RestartRecord, ...],
        fact("Losses after which the training went on; such a trial is not measured."),
    ] = ()
    clocks: Annotated[Clocks | None, fact("Durations.")] = None
    counts: Annotated[Counts | None, fact("Rows, batches, updates.")] = None
    fingerprints: Annotated[Fingerprints | None, fact("SHA-256 of data and parameters.")] = None
    validation: Annotated[tuple[EpochRecord, ...], fact("After each epoch.")] = ()
    stopping: Annotated[
        StoppingRecord | None, fact("Where training ended; null: the case always runs all epochs.")
    ] = None
    test: Annotated[EvaluationRecord | None, fact("Once, at the end.")] = None
    ranks: Annotated[tuple[RankRecord, ...], fact("In rank order.")] = ()
    coordinator_phases: Annotated[dict[str, PhaseSummary], fact("Of an update, on the coordinator.")] = (
        msgspec.field(default_factory=dict)
    )
    coordinator_rss_high_water_bytes: Annotated[
        int | None, fact("Largest resident memory of the coordinator's process so far.", "bytes")
    ] = None
    largest_rank: Annotated[int | None, fact("Rank with the largest worker RSS high water.")] = None
    noise: Annotated[NoiseRecord | None, fact("What may have disturbed the trial.")] = None
    checks: Annotated[tuple[Check, ...], fact("Fixed checks of the contract.")] = ()
    data: Annotated[dict[str, Any], private("Names in a person's own table: never published.")] = (
        msgspec.field(default_factory=dict)
    )
    host: Annotated[dict[str, Any], private("Host name, PIDs, addresses: never published.")] = msgspec.field(
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
        receipt = msgspec.json.decode(data, type=TrialReceipt)
        if receipt.schema_version != SCHEMA_VERSION:
            raise msgspec.ValidationError(f"it has {receipt.schema_version}")
        return receipt
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReceiptError(
            f"not a receipt of schema version {SCHEMA_VERSION} ({error}).",
            where=where,
            remedy="It was written by another version, cut short or changed: remove it to run its trial "
            "again.",
        ) from error


def decode_public_receipt(line: bytes, where: str = "receipt") -> TrialReceipt:
    """Read a published receipt: its private fields are empty.

    Raises
    ------
    ReceiptError
        If it is not JSON or a field is wrong; the sentence names it.
    """
    try:
        record = read_json(line)
    except ValueError as error:
        raise _unfit(error, where) from error
    return public_receipt_of(record, where)


def public_receipt_of(record: Any, where: str = "receipt") -> TrialReceipt:
    """Read a published receipt from plain values: its private fields are empty.

    Raises
    ------
    ReceiptError
        If a field is wrong; the sentence names it.
    """
    try:
        full = {**record, "host": {}}
        if isinstance(record.get("failure"), dict):
            full["failure"] = {**record["failure"], "what": "", "where": "", "remedy": ""}
        return msgspec.convert(full, TrialReceipt)
    except (ValueError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise _unfit(error, where) from error


def _unfit(error: Exception, where: str) -> ReceiptError:
    return ReceiptError(f"does not fit the schema: {error}", where=where)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a receipt, with units and privacy beside each field's meaning."""
    return msgspec.json.schema(TrialReceipt)
