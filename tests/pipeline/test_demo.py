# SPDX-License-Identifier: Apache-2.0
"""The demo's first and last words: what it is, and how to go on after Ctrl-C."""

from __future__ import annotations

import argparse

import pytest

from pipeline.verbs import demo


def test_the_first_line_says_that_no_npu_is_used_and_ctrl_c_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupted(_: argparse.Namespace) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_demo", interrupted)
    end = demo.demo([])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("no NPU is used here: values are computed by the digital twin")
    assert "times on the NPU are not measured" in said[0]
    assert said[-1] == "interrupted; every finished phase is recorded"
    assert (end.code, end.next.split("  #")[0]) == (2, "make demo")
