from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from wdae.runtime.cores import map_on_cores, side_by_side


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param
    torch.set_num_threads(before)


def test_results_in_order_without_gradients_or_autocast(threads: int) -> None:
    x = torch.ones(3, 3, requires_grad=True)

    def work(i: int) -> tuple[int, bool, torch.dtype]:
        y = x @ x * i
        return int(y[0, 0]), y.requires_grad, y.dtype

    with torch.autocast("cpu", torch.bfloat16):
        done = side_by_side(work, range(20))
    assert done == [(3 * i, False, torch.float32) for i in range(20)]
    assert list(map_on_cores(lambda i: i * 2, range(5), torch.device("cpu"))) == [0, 2, 4, 6, 8]
    assert side_by_side(work, []) == []


def test_each_piece_works_alone(threads: int) -> None:
    seen = side_by_side(lambda _: torch.get_num_threads(), range(8))
    assert set(seen) == {1}


def test_several_pieces_at_once(threads: int) -> None:
    meeting = threading.Barrier(threads, timeout=10)
    side_by_side(lambda _: meeting.wait(), range(threads))  # deadlocks, then breaks, if one after another


def test_errors_come_out_and_the_next_call_works(threads: int) -> None:
    def fails(i: int) -> int:
        if i == 3:
            raise ValueError("piece 3")
        return i

    with pytest.raises(ValueError, match="piece 3"):
        side_by_side(fails, range(6))
    assert side_by_side(abs, range(4)) == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_threads_of_its_own(threads: int) -> None:
    side_by_side(abs, range(4))
    child = os.fork()
    if not child:
        os._exit(0 if side_by_side(abs, [-1, 2, -3]) == [1, 2, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
