# SPDX-License-Identifier: Apache-2.0
"""16, 64 and 16 locks; ids once; values 0..63."""

from dataclasses import replace

import pytest

from npu.program import Core, FifoEnd, Lock, LockUse, Release, SetLock, UseLock
from tests.npu.legality.programs import CORE, MEMTILE, SHIM, design, into, limits, pool, ring, sequence


@pytest.mark.parametrize(("tile", "available"), [(CORE, 16), (MEMTILE, 64), (SHIM, 16)])
def test_locks_of_a_tile(tile, available):
    locks = tuple(Lock(f"l{n}", tile, None, 0) for n in range(available))
    assert limits(design(locks=locks)) == []
    assert limits(design(locks=(*locks, Lock("more", tile, None, 0)))) == ["locks"]


def test_lock_ids_exist_and_are_given_once():
    assert limits(design(locks=(Lock("a", CORE, 15, 0), Lock("b", CORE, 14, 0)))) == []
    assert limits(design(locks=(Lock("a", CORE, 16, 0),))) == ["lock id"]
    assert limits(design(locks=(Lock("a", CORE, 3, 0), Lock("b", CORE, 3, 0)))) == ["locks with one id"]
    assert limits(design(locks=(Lock("a", CORE, 3, 0), Lock("b", MEMTILE, 3, 0)))) == []


@pytest.mark.parametrize(
    ("value", "expected"), [(63, []), (64, ["lock value"]), (74, ["lock value"]), (-1, ["lock value"])]
)
def test_values_fit_six_bits_wherever_they_stand(value, expected):
    lock = Lock("l", CORE, None, 0)
    use = LockUse("l", value)
    assert limits(design(locks=(replace(lock, init=value),))) == expected
    assert limits(design(locks=(lock,), sequences=(sequence(SetLock("l", value)),))) == expected
    assert limits(design(locks=(lock,), cores=(Core(CORE, (UseLock(use, acquire=True),)),))) == expected
    in_bd = ring(into(CORE), pool("p", CORE), acquire=use)
    assert limits(design(locks=(lock,), buffers=pool("p", CORE), dmas=(in_bd,), routes=(), sequences=())) == expected
    end = FifoEnd("f", "Produce", ("x",), "l", "l")
    assert limits(design(locks=(lock,), cores=(Core(CORE, (Release(0, value),), ends=(end,)),))) == expected


def test_a_repeated_element_counts_its_repeats_at_the_lock():
    lock = Lock("l", CORE, None, 0)

    def releasing(repeat):
        end = FifoEnd("f", "Produce", ("x",), "l", "l", repeat=repeat)
        return limits(design(locks=(lock,), cores=(Core(CORE, (Release(0, 3),), ends=(end,)),)))

    assert releasing(21) == []
    assert releasing(22) == ["lock value"]
