# SPDX-License-Identifier: Apache-2.0
"""The evidence chain: what is appended stays, what is tampered with is named, what a kill tore is cut."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from judge.evidence import (
    GENESIS,
    Entry,
    Kind,
    Measured,
    Provenance,
    WallTime,
    append,
    records,
    verify_chain,
)
from refusal import Refusal

HASH = "ab" * 32
ROOT = Path(__file__).parents[2]


def gate(value: float = 0.01, **changes: object) -> Entry:
    fields: dict[str, object] = {
        "kind": Kind.GATE,
        "subject": "phase1.add",
        "body": {"passed": True},
        "inputs": {"config": HASH, "policy": HASH},
        "figures": {"abs": Measured(value, "", Provenance.TWIN)},
        "device": "twin",
        "tier": "event",
        "seeds": (1, 2),
        "wall": WallTime(compile=1.5, run=0.2, judge=0.01, waiting=3.0),
    }
    return Entry(**fields | changes)  # type: ignore[arg-type]


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "deployment" / "evidence.jsonl"
    for index in range(4):
        append(path, gate(0.01 * (index + 1)))
    return path


def rewrite(path: Path, number: int, change: object) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[number])
    change(record)  # type: ignore[operator]
    lines[number] = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(b"".join(lines))


def test_a_chain_holds_and_reads_back(chain: Path):
    state = verify_chain(chain)
    assert (state.intact, state.records, state.torn_bytes) == (True, 4, 0)
    read = list(records(chain))
    assert [record.sequence for record in read] == [0, 1, 2, 3]
    assert read[2].entry == gate(0.03)
    assert read[0].previous == GENESIS
    assert [record.previous for record in read[1:]] == [record.hash for record in read[:-1]]
    assert state.head == read[-1].hash


def test_the_hash_can_be_recomputed_from_the_line_alone(chain: Path):
    record = json.loads(chain.read_bytes().splitlines()[1])
    claimed = record.pop("hash")
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == claimed


def test_a_missing_file_is_an_empty_chain(tmp_path: Path):
    assert verify_chain(tmp_path / "none").records == 0


def test_an_edited_figure_is_named(chain: Path):
    rewrite(chain, 1, lambda record: record["entry"]["figures"]["abs"].update(value=1e-9))
    state = verify_chain(chain)
    assert (state.intact, state.broken, state.line) == (False, 1, 2)
    assert "altered" in state.problem


def test_an_edit_with_its_hash_repaired_breaks_the_next_record(chain: Path):
    def change(record: dict[str, object]) -> None:
        record["entry"]["figures"]["abs"]["value"] = 1e-9  # type: ignore[index]
        record.pop("hash")
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        record["hash"] = hashlib.sha256(text.encode()).hexdigest()

    rewrite(chain, 1, change)
    state = verify_chain(chain)
    assert state.broken == 2
    assert "the record before it" in state.problem


@pytest.mark.parametrize("order", [[0, 2, 3], [0, 2, 1, 3], [0, 1, 1, 2, 3], [1, 2, 3]])
def test_removed_moved_and_repeated_records_are_named(chain: Path, order: list[int]):
    lines = chain.read_bytes().splitlines(keepends=True)
    chain.write_bytes(b"".join(lines[index] for index in order))
    state = verify_chain(chain)
    assert state.broken == next(i for i, index in enumerate(order) if i != index)


def test_an_unknown_field_or_a_line_that_is_no_record_is_named(chain: Path):
    lines = chain.read_bytes().splitlines(keepends=True)
    chain.write_bytes(lines[0] + b'{"note": "looks fine"}\n' + lines[1])
    assert verify_chain(chain).broken == 1


def test_records_cut_off_the_end_are_found_by_who_saw_the_head(chain: Path):
    head = verify_chain(chain).head
    lines = chain.read_bytes().splitlines(keepends=True)
    chain.write_bytes(b"".join(lines[:-1]))
    assert verify_chain(chain).intact
    state = verify_chain(chain, pinned=head)
    assert not state.intact
    assert "cut off" in state.problem


def test_a_broken_chain_takes_no_further_record(chain: Path):
    rewrite(chain, 2, lambda record: record.update(time="2020-01-01"))
    before = chain.read_bytes()
    with pytest.raises(Refusal, match="record 2"):
        append(chain, gate())
    with pytest.raises(Refusal, match="record 2"):
        list(records(chain))
    assert chain.read_bytes() == before


@pytest.mark.parametrize("kept", [1, 40, 200])
def test_a_torn_last_line_is_cut_with_a_note(chain: Path, kept: int):
    whole = chain.read_bytes()
    chain.write_bytes(whole + whole.splitlines(keepends=True)[-1][:kept])
    state = verify_chain(chain)
    assert state.intact, "what was torn never was a record"
    assert (state.records, state.torn_bytes) == (4, kept)
    assert len(list(records(chain))) == 4
    append(chain, gate(0.5))
    *_, repair, last = records(chain)
    assert repair.entry.kind is Kind.REPAIR
    assert repair.entry.body["cut_bytes"] == kept
    assert last.entry == gate(0.5)
    assert verify_chain(chain).torn_bytes == 0


def test_a_record_killed_before_its_newline_is_torn_even_if_its_json_is_whole(chain: Path):
    chain.write_bytes(chain.read_bytes()[:-1])
    assert verify_chain(chain).records == 3


def test_writers_at_the_same_time_leave_one_chain(tmp_path: Path):
    path = tmp_path / "evidence.jsonl"
    program = (
        "import sys; from pathlib import Path; from judge.evidence import *\n"
        "for i in range(15): append(Path(sys.argv[1]), Entry(Kind.DECISION, sys.argv[2], {'i': i}))"
    )
    workers = [subprocess.Popen([sys.executable, "-c", program, str(path), str(w)], cwd=ROOT) for w in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    state = verify_chain(path)
    assert (state.intact, state.records) == (True, 45)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": {"config": "abc"}}, "SHA-256"),
        ({"inputs": {}}, "without inputs"),
        ({"figures": {}, "body": {}}, "without a verdict"),
        ({"device": "cpu"}, "device 'cpu'"),
        ({"tier": ""}, "tier"),
        ({"figures": {"abs": Measured(float("nan"), "", Provenance.TWIN)}}, "finite"),
        ({"figures": {"time": Measured(1.0, "s", Provenance.NPU)}}, "from npu"),
        ({"synthetic_weights": True}, "claims trained weights"),
    ],
)
def test_what_an_entry_may_not_say(tmp_path: Path, changes: dict[str, object], message: str):
    with pytest.raises(Refusal, match=message):
        append(tmp_path / "evidence.jsonl", gate(**changes))
    assert not (tmp_path / "evidence.jsonl").exists()
